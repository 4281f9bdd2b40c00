"""SliceGPT: the residual stream is cut, and ``attn_shortcut_Q``, ``mlp_shortcut_Q`` carry it.

Every stretch of the residual stream between two shortcuts is one dim: it is written in the
weights that produce it (o, down, embedding), in those that read it (q, k, v, gate, up, head)
and in the two shortcut matrices [in, out] at its ends. The norms have no weights and divide by
the *original* hidden size, so zeros in the stream change nothing
(microsoft/TransformerCompression, slicegpt/rotate.py, modules.py). The side JSON has all sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gacprof.checkpoint.inventory import Contents, Dim, Feed, Inventory, NewSizes, Place
from gacprof.checkpoint.layouts.layout import Compressor, embedding_tables
from gacprof.checkpoint.layouts.linear import Linear, dense_linears
from gacprof.checkpoint.layouts.names import layer_of, names_below, role_of
from gacprof.core.errors import CheckpointError

if TYPE_CHECKING:
    from torch import nn

_ATTENTION, _MLP = ".attn_shortcut_Q", ".mlp_shortcut_Q"
_SHORTCUT = {"attention": _ATTENTION, "mlp": _MLP}
_READ_BY = {"attention": ("q", "k", "v", "qkv"), "mlp": ("gate", "up", "gate_up")}
_WRITTEN_BY = {"attention": ("o",), "mlp": ("down",)}


class SliceGpt(Compressor):
    name = "slicegpt"

    def recognise(self, contents: Contents) -> bool:
        return any(name.endswith(_ATTENTION) for name in contents.tensors)

    def found(self, contents: Contents) -> Iterator[Linear]:
        """Each shortcut is a GEMM of its own; its matrix is stored as [in, out]."""
        for name in contents.tensors:
            if name.endswith((_ATTENTION, _MLP)):
                yield Linear(name, (name,), axes=(1, 0))

    def dims(self, contents: Contents, linears: Sequence[Linear]) -> Iterator[Dim]:
        return (stretch.dim(contents) for stretch in _stretches(contents, linears))

    def notes(self, contents: Contents, found: Sequence[Linear]) -> Iterator[str]:
        yield (
            "norms divide by the original hidden size and have no weights: only gacprof.load_model "
            "or SliceGPT's own loader runs this model right"
        )
        if not _slicing(contents.side):
            yield (
                "the slicing config (JSON beside the weights) is missing; SliceGPT's loader needs "
                "it"
            )

    def mirror(self, inventory: Inventory, sizes: NewSizes) -> dict[str, dict[str, Any]]:
        files = super().mirror(inventory, sizes)
        contents = Contents(inventory.tensors, inventory.config, inventory.side)
        linears = [*self.found(contents), *dense_linears(contents)]
        for file, side in _slicing(inventory.side).items():
            new = {k: dict(v) if isinstance(v, dict) else v for k, v in side.items()}
            for stretch in _stretches(contents, linears):
                size = sizes.get(stretch.name)
                for key in stretch.keys if size is not None else ():
                    table = new.get(key[0])
                    if len(key) == 1:
                        new[key[0]] = size
                    elif isinstance(table, dict) and key[1] in table:
                        table[key[1]] = size
            files[file] = new
        return files

    def adapt(self, model: nn.Module, inventory: Inventory) -> None:
        from gacprof.checkpoint.layers import with_sliced_layers  # imports torch

        hidden = _original_hidden(inventory)
        if hidden is None:
            raise CheckpointError(
                f"{inventory.path}: the original hidden size is not in its configs"
            )
        shortcuts = [name for name in inventory.tensors if name.endswith((_ATTENTION, _MLP))]
        with_sliced_layers(model, inventory, hidden, shortcuts)


@dataclass
class _Stretch:
    """The residual stream between two shortcuts. ``keys`` are its entries in the side JSON."""

    name: str
    layer: int | None
    places: list[Place]
    feeds: list[Feed] = field(default_factory=list)
    keys: list[tuple[str, ...]] = field(default_factory=list)

    def written_to(self, shortcut: str, writers: Sequence[Linear]) -> None:
        self.places.append(Place(shortcut, 1))
        self.feeds.append(Feed(shortcut, "N"))
        for writer in writers:
            self.places.append(Place(writer.outer[0], writer.axes[0]))
            self.places.extend(Place(bias, 0) for bias in writer.biases)
            self.feeds.append(Feed(writer.outer[0], "N"))

    def read_by(self, shortcut: str | None, readers: Sequence[Linear]) -> None:
        if shortcut:
            self.places.append(Place(shortcut, 0))
            self.feeds.append(Feed(shortcut, "K"))
        self.places.extend(Place(x.reads, x.axes[1]) for x in readers)
        self.feeds.extend(Feed(x.reads, "K") for x in readers)

    def dim(self, contents: Contents) -> Dim:
        sizes = {contents.shape(place.tensor)[place.axis] for place in self.places}
        if len(sizes) != 1:
            raise CheckpointError(
                f"{self.name}: the weights at this stretch of the residual stream have sizes "
                f"{sorted(sizes)[:6]}, which should be one"
            )
        size = sizes.pop()
        return Dim(
            name=self.name,
            kind="hidden",
            size=size,
            places=tuple(self.places),
            feeds=tuple(self.feeds),
            params_per_unit=sum(
                contents.tensors[p.tensor].numel // max(1, size) for p in self.places
            ),
            layer=self.layer,
            role="hidden",
        )


def _stretches(contents: Contents, linears: Sequence[Linear]) -> Iterator[_Stretch]:
    """The residual stream in order: after the embedding, then after each shortcut."""
    tables = [Place(name, 1) for name in embedding_tables(contents)]
    stretch = _Stretch("embedding:hidden", None, tables, keys=[("embedding_dimensions", "0")])
    paths = [n.removesuffix(_ATTENTION) for n in contents.tensors if n.endswith(_ATTENTION)]
    by_name = {linear.name: linear for linear in linears}
    below = names_below(set(paths), by_name)
    for path in sorted(paths, key=lambda p: layer_of(p) or 0):
        layer = layer_of(path) or 0
        inside = [by_name[name] for name in below.get(path, ())]
        is_parallel = f"{path}{_MLP}" not in contents.tensors  # attention and MLP beside each other
        for kinds in (("attention", "mlp"),) if is_parallel else (("attention",), ("mlp",)):
            shortcut = path + _SHORTCUT[kinds[0]]
            reading = [role for kind in kinds for role in _READ_BY[kind]]
            writing = [role for kind in kinds for role in _WRITTEN_BY[kind]]
            stretch.read_by(shortcut, [x for x in inside if role_of(x.name) in reading])
            stretch.keys += [(f"{kind}_input_dimensions", str(layer)) for kind in kinds]
            yield stretch
            short = "block" if is_parallel else {"attention": "attn", "mlp": "mlp"}[kinds[0]]
            stretch = _Stretch(f"{path}.{short}:hidden", layer, [])
            stretch.written_to(shortcut, [x for x in inside if role_of(x.name) in writing])
            stretch.keys += [(f"{kind}_output_dimensions", str(layer)) for kind in kinds]
    stretch.read_by(None, [linear for linear in linears if role_of(linear.name) == "head"])
    stretch.keys.append(("head_dimension",))
    yield stretch


def _slicing(side: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The slicing configs among the side files."""
    return {file: config for file, config in side.items() if "embedding_dimensions" in config}


def _original_hidden(source: Inventory) -> int | None:
    sizes = (c.get("hidden_size") for c in (*_slicing(source.side).values(), source.config))
    return next((size for size in sizes if type(size) is int), None)
