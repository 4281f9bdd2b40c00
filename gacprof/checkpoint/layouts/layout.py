"""One way in which a tool lays a model out, and what all of them share.

A layout knows what names and shapes *mean*. It never reads tensor data and never decides
anything by a folder's name. It lists each :class:`Linear`; here each becomes a module with
its GEMMs, each factor pair a rank dim, each MLP one width dim that couples gate, up and down.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from gacprof.checkpoint.inventory import (
    Contents,
    Dim,
    Feed,
    Gemm,
    Inventory,
    Module,
    NewSizes,
    Place,
    dims_by_weight,
)
from gacprof.checkpoint.layouts.declared import with_widths
from gacprof.checkpoint.layouts.heads import find_attentions
from gacprof.checkpoint.layouts.linear import (
    Linear,
    check_shapes,
    dense_linears,
    factor_chains,
)
from gacprof.checkpoint.layouts.names import is_embedding, layer_of, role_of
from gacprof.checkpoint.layouts.widths import find_widths

if TYPE_CHECKING:
    from torch import nn


LLAMA_ROPE_THETA = 10000.0
"""LlamaRotaryEmbedding's default."""


class Layout:
    """The base of all layouts: ``name`` and :meth:`found` are the least that one has to say.

    ``ordered`` says whether its factors keep their trailing entries least important.
    """

    name = ""
    ordered = True

    def found(self, contents: Contents) -> Iterable[Linear]:
        """The layers that only this layout understands: factored, grouped, packed."""
        return ()

    def dims(self, contents: Contents, linears: Sequence[Linear]) -> Iterable[Dim]:
        """Dims beside the ranks and widths that every layout has."""
        return ()

    def notes(self, contents: Contents, found: Sequence[Linear]) -> Iterable[str]:
        """What a user of such a checkpoint should know."""
        return ()

    def recognise(self, contents: Contents) -> bool:
        """Whether the structure of names and shapes is this layout's."""
        return any(True for _ in self.found(contents))

    def describe(
        self, contents: Contents, path: str = "", side_files: tuple[str, ...] = ()
    ) -> Inventory:
        """With modules, adjustable dims and attentions. Raises :class:`CheckpointError`."""
        found = list(self.found(contents))
        linears = [*found, *dense_linears(contents, found)]
        check_shapes(contents, linears)
        ranks = [dim for linear in linears for dim in _ranks(contents, linear, self.ordered)]
        widths, width_notes = find_widths(contents, linears)
        own = self.dims(contents, linears)
        dims = sorted((*ranks, *widths, *own), key=lambda d: _order(d.layer, d.role, d.name))
        fed = dims_by_weight(dims)
        modules = [_embedding(contents, name) for name in embedding_tables(contents)]
        modules.extend(_module(contents, linear, fed) for linear in linears)
        modules.extend(_tied_head(contents, modules, fed))
        modules.sort(key=lambda m: _order(m.layer, m.role, m.name))
        attentions, attention_notes = find_attentions(contents, linears)
        notes = [*contents.notes, *self.notes(contents, found), *width_notes, *attention_notes]
        if dims and not any(dim.adjustable for dim in dims):
            notes.append(f"nothing to realign: {dims[0].why}")
        return Inventory(
            **{f.name: getattr(contents, f.name) for f in fields(contents)}
            | {"notes": tuple(notes)},
            path=path,
            layout=self.name,
            modules=tuple(modules),
            dims=tuple(dims),
            attentions=attentions,
            side_files=side_files,
        )

    def mirror(self, inventory: Inventory, sizes: NewSizes) -> dict[str, dict[str, Any]]:
        """The JSON files that change with ``sizes``, by file name, unknown keys kept."""
        if not inventory.config:
            return {}
        return {"config.json": with_widths(inventory.config, inventory.dims, sizes)}

    def adapt(self, model: nn.Module, inventory: Inventory) -> None:
        """Change a transformers model, still without weights, to what the tool computes.

        Factored layers, widths and heads are not its business: they are fitted to the tensors.
        """


class Compressor(Layout):
    """A layout that names its tool.

    Factor pairs are ``X{inner}.weight`` with ``X{outer}.weight``, or one outer a group; ``note`` is
    what users of such a checkpoint should know. ``rank_key`` is where the tool's config keeps the
    ranks by module, ``prefix`` what the tool puts before names of classes and, in lower case,
    before model types. ``classes`` begin the names of its own classes in a pickled model; their
    rotary embeddings use ``rope_theta`` whatever the config says.
    """

    inner = ""
    outer = ""
    note = ""
    rank_key = ""
    prefix = ""
    classes: tuple[str, ...] = ()
    rope_theta = LLAMA_ROPE_THETA

    def found(self, contents: Contents) -> Iterable[Linear]:
        return factor_chains(contents, self.inner, self.outer) if self.inner else ()

    def notes(self, contents: Contents, found: Sequence[Linear]) -> Iterator[str]:
        if self.note:
            yield self.note
        if self.rank_key:
            yield from self._rank_notes(contents, found)

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

    def _rank_notes(self, contents: Contents, found: Sequence[Linear]) -> Iterator[str]:
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


_ROLES = ("embedding", "q", "k", "v", "qkv", "o", "gate", "up", "gate_up", "down", "mlp")
_LAST = 1 << 30
_NUMBERS = re.compile(r"([0-9]+)")


def _order(layer: int | None, role: str, name: str) -> tuple[Any, ...]:
    """As the model runs: embedding, layers, the rest; within a layer by role, then by name."""
    first = -1 if layer is None and role == "embedding" else _LAST if layer is None else layer
    place = _ROLES.index(role) if role in _ROLES else len(_ROLES)
    return first, place, *map(_numbered, name.split("."))


@lru_cache(1 << 12)
def _numbered(part: str) -> tuple[tuple[int, str], ...]:
    """Numbers compare by length first: 9 before 10."""
    return tuple((len(p) if p[:1].isdecimal() else 0, p) for p in _NUMBERS.split(part))


BEYOND = 4
"""Ranks above the larger side of the weight hold zeros at best. So many times that is no rank:
the matrices that a cut decomposes are rank × rank."""


def rank_names(module: str, groups: int) -> list[str]:
    """The names of the rank dims of a factored module."""
    return [f"{module}:rank" + (f".{i}" if groups > 1 else "") for i in range(groups)]


def _ranks(contents: Contents, linear: Linear, ordered: bool) -> Iterator[Dim]:
    """One rank dim per outer factor, at its offset in the inner one's output."""
    if linear.inner is None:
        return
    out_axis, in_axis = linear.axes
    start, n_in = 0, linear.in_features(contents)
    for name, outer in zip(rank_names(linear.name, len(linear.outer)), linear.outer, strict=True):
        n_out, size = contents.shape(outer)[out_axis], contents.shape(outer)[in_axis]
        frozen = linear.frozen
        if size > BEYOND * max(n_in, n_out):
            frozen = frozen or "it is larger than its weight's rank can be: not a factor pair"
        yield Dim(
            name=name,
            kind="rank",
            size=size,
            places=(Place(linear.inner, out_axis, start), Place(outer, in_axis)),
            feeds=(Feed(linear.inner, "N"), Feed(outer, "K")),
            params_per_unit=n_in + n_out,
            layer=layer_of(linear.name),
            role=role_of(linear.name),
            dense_size=min(n_in, n_out) if size < min(n_in, n_out) else None,
            padding="refused" if frozen else "exact",
            why=frozen,
            ordered=ordered and not frozen,
        )
        start += size


def _module(contents: Contents, linear: Linear, fed: Mapping[str, Sequence[Dim]]) -> Module:
    n_out, n_in = linear.out_features(contents), linear.in_features(contents)
    biased = bool(linear.biases)
    if linear.packed or linear.inner is None:
        gemms = [Gemm(linear.outer[0], n_out, n_in, biased)]
    else:
        out_axis, in_axis = linear.axes
        gemms = [Gemm(linear.inner, contents.shape(linear.inner)[out_axis], n_in)]
        for outer in linear.outer:
            shape = contents.shape(outer)
            gemms.append(Gemm(outer, shape[out_axis], shape[in_axis], biased))
    grouped = len(linear.outer) > 1
    names = [dim.name for gemm in gemms for dim in fed.get(gemm.weight, ())]
    return Module(
        name=linear.name,
        role=role_of(linear.name),
        layer=layer_of(linear.name),
        kind="grouped" if grouped else "factored" if linear.inner else "dense",
        in_features=n_in,
        out_features=n_out,
        dtype=linear.dtype(contents),
        gemms=tuple(gemms),
        dims=tuple(dict.fromkeys(names)),
    )


def embedding_tables(contents: Contents) -> Iterator[str]:
    """The tensors that are looked up in rather than multiplied by."""
    for name, info in contents.tensors.items():
        module = name.removesuffix(".weight")
        if module != name and len(info.shape) == 2 and info.numel and is_embedding(module):
            yield name


def _embedding(contents: Contents, name: str) -> Module:
    info, module = contents.tensors[name], name.removesuffix(".weight")
    rows, width = info.shape
    return Module(module, "embedding", layer_of(module), "embedding", rows, width, info.dtype, ())


def _tied_head(
    contents: Contents, modules: Sequence[Module], fed: Mapping[str, Sequence[Dim]]
) -> Iterator[Module]:
    """The head GEMM that reads the embedding's weight, where the head has none of its own."""
    if not contents.ties_head or any(m.role == "head" for m in modules):
        return
    for table in modules:
        last = table.name.rsplit(".", 1)[-1]
        if table.kind == "embedding" and last in ("embed_tokens", "wte", "word_embeddings"):
            rows, width = table.in_features, table.out_features
            gemm = Gemm(f"{table.name}.weight", rows, width)
            dims = tuple(dim.name for dim in fed.get(gemm.weight, ()))
            yield Module("lm_head", "head", None, "dense", width, rows, table.dtype, (gemm,), dims)
            return
