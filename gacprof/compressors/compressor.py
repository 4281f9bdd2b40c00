"""What gacprof knows of one compression tool: its layout, its config, what its model computes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gacprof.checkpoint.inventory import Contents, Inventory, NewSizes
from gacprof.checkpoint.layouts.layout import Layout, rank_names
from gacprof.checkpoint.layouts.linear import Linear

LLAMA_ROPE_THETA = 10000.0
"""LlamaRotaryEmbedding's default."""


class Compressor(Layout):
    """A layout that names its tool.

    ``rank_key`` is where the tool's config keeps the ranks by module, ``prefix`` what the tool puts
    before names of classes and, in lower case, before model types. ``classes`` begin the names of
    its own classes in a pickled model; their rotary embeddings use ``rope_theta`` whatever the
    config says.
    """

    rank_key = ""
    prefix = ""
    classes: tuple[str, ...] = ()
    rope_theta = LLAMA_ROPE_THETA

    def has_class(self, name: str) -> bool:
        return bool(self.classes) and name.startswith(self.classes)

    def without_prefix(self, name: Any) -> Any:
        """A class name or model type as the uncompressed model has it."""
        if not isinstance(name, str):
            return name
        return name.removeprefix(self.prefix).removeprefix(self.prefix.lower()) or name

    def mirror(self, inventory: Inventory, sizes: NewSizes) -> dict[str, dict[str, Any]]:
        files = super().mirror(inventory, sizes)
        config = files.get("config.json", {})
        declared = config.get(self.rank_key)
        if isinstance(declared, Mapping):
            new = {module: _resized(module, ranks, sizes) for module, ranks in declared.items()}
            left = {module: ranks for module, ranks in new.items() if ranks not in (None, [])}
            files["config.json"] = config | {self.rank_key: left} if left else self._plain(config)
        return files

    def _plain(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The config of a model in which nothing is factored any more.

        The tool's remote code would build factors that are no longer there.
        """
        plain = {k: v for k, v in config.items() if k not in (self.rank_key, "auto_map")}
        if isinstance(plain.get("architectures"), list):
            plain["architectures"] = [self.without_prefix(n) for n in plain["architectures"]]
        if "model_type" in plain:
            plain["model_type"] = self.without_prefix(plain["model_type"])
        return plain

    def rank_notes(self, contents: Contents, found: Sequence[Linear]) -> Iterator[str]:
        """Where the config's ranks are not those of the tensors."""
        declared = contents.config.get(self.rank_key)
        if not isinstance(declared, dict):
            yield f"config.json has no {self.rank_key}, which the tool's own class needs"
            return
        for linear in found:
            given, ranks = declared.get(linear.name), [contents.shape(t)[1] for t in linear.outer]
            if given != ranks and [given] != ranks:
                stored = ranks if len(ranks) > 1 or isinstance(given, list) else ranks[0]
                yield (
                    f"{linear.name}: config says rank {given}, the tensors have {stored}; the "
                    "tensors are believed"
                )


def _resized(module: str, ranks: Any, sizes: NewSizes) -> Any:
    """The ranks of one module, a number or a list of groups; none where its factors are gone."""
    if not isinstance(ranks, list):
        return sizes.get(f"{module}:rank", ranks)
    names = rank_names(module, len(ranks))
    new = [sizes.get(name, rank) for name, rank in zip(names, ranks, strict=True)]
    return [rank for rank in new if rank is not None]
