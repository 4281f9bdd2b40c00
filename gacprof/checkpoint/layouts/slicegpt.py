"""SliceGPT: the residual stream is cut, and ``attn_shortcut_Q``, ``mlp_shortcut_Q`` carry it.

Every stretch of the residual stream between two shortcuts is one dim: it is written in the weights
that produce it (o, down, embedding), in those that read it (q, k, v, gate, up, head) and in the two
shortcut matrices [in, out] at its ends. The norms have no weights and divide by the *original*
hidden size, so zeros in the stream change nothing (microsoft/TransformerCompression,
slicegpt/rotate.py, modules.py). A JSON file beside the weights has all sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gacprof.checkpoint.inventory import Contents, Dim, Feed, NewSizes, Place
from gacprof.checkpoint.layouts.linear import Linear, dense
from gacprof.checkpoint.layouts.names import layer_of, names_below, role_of
from gacprof.core.errors import CheckpointError

_ATTENTION, _MLP = ".attn_shortcut_Q", ".mlp_shortcut_Q"
_READERS = {"attention": ("q", "k", "v", "qkv"), "mlp": ("gate", "up", "gate_up")}
_WRITERS = {"attention": "o", "mlp": "down"}
_SHORT = {("attention",): "attn", ("mlp",): "mlp", ("attention", "mlp"): "block"}


def shortcuts_of(contents: Contents) -> list[str]:
    """Return the names of the shortcut matrices."""
    return [name for name in contents.tensors if name.endswith((_ATTENTION, _MLP))]


def shortcut_linears(contents: Contents) -> list[Linear]:
    """Each shortcut is a product of its own; its matrix is stored as [in, out]."""
    return [dense(contents, name, name, axes=(1, 0)) for name in shortcuts_of(contents)]


@dataclass
class Stretch:
    """The residual stream between two shortcuts. ``keys`` are its entries in the side JSON."""

    name: str
    layer: int | None
    places: list[Place] = field(default_factory=list)
    feeds: list[Feed] = field(default_factory=list)
    keys: list[tuple[str, ...]] = field(default_factory=list)

    def add(self, tensor: str, axis: int, side: str) -> None:
        """Add a tensor that has the stretch along ``axis``, and N or K of its product."""
        self.places.append(Place(tensor, axis))
        self.feeds.append(Feed(tensor, "N" if side == "N" else "K"))

    def dim(self, contents: Contents) -> Dim:
        """The stretch as a dim. Raises :class:`CheckpointError` where its tensors disagree."""
        sizes = {contents.shape(place.tensor)[place.axis] for place in self.places}
        if len(sizes) != 1:
            raise CheckpointError(
                f"{self.name}: the weights at this stretch of the residual stream have sizes "
                f"{sorted(sizes)[:6]}, which should be one size: fetch the checkpoint again"
            )
        size = sizes.pop()
        stored = [contents.tensors[place.tensor].numel // max(1, size) for place in self.places]
        return Dim(
            name=self.name,
            kind="hidden",
            size=size,
            places=tuple(self.places),
            feeds=tuple(self.feeds),
            params_per_unit=sum(stored),
            layer=self.layer,
            role="hidden",
        )


def stretches(
    contents: Contents, linears: Sequence[Linear], tables: Sequence[str]
) -> list[Stretch]:
    """Return the stretches in order: after the embedding ``tables``, then after each shortcut."""
    blocks = [n.removesuffix(_ATTENTION) for n in contents.tensors if n.endswith(_ATTENTION)]
    by_name = {linear.name: linear for linear in linears}
    below = names_below(blocks, by_name)
    stretch = Stretch("embedding:hidden", None, [Place(name, 1) for name in tables])
    stretch.keys.append(("embedding_dimensions", "0"))
    stream = [stretch]
    for block in sorted(blocks, key=lambda name: layer_of(name) or 0):
        layer = layer_of(block) or 0
        steps: tuple[tuple[str, ...], ...] = (("attention",), ("mlp",))
        if block + _MLP not in contents.tensors:
            steps = (("attention", "mlp"),)  # attention and MLP beside each other
        for kinds in steps:
            shortcut = block + (_MLP if kinds == ("mlp",) else _ATTENTION)
            after = Stretch(f"{block}.{_SHORT[kinds]}:hidden", layer)
            stretch.add(shortcut, 0, "K")
            after.add(shortcut, 1, "N")
            inside = [by_name[name] for name in below[block]]
            _read(stretch, inside, [role for kind in kinds for role in _READERS[kind]])
            _write(after, inside, [_WRITERS[kind] for kind in kinds])
            stretch.keys += [(f"{kind}_input_dimensions", str(layer)) for kind in kinds]
            after.keys += [(f"{kind}_output_dimensions", str(layer)) for kind in kinds]
            stretch = after
            stream.append(stretch)
    _read(stretch, linears, ["head"])
    stretch.keys.append(("head_dimension",))
    return stream if blocks else []


def _read(stretch: Stretch, linears: Sequence[Linear], roles: Sequence[str]) -> None:
    for linear in linears:
        if role_of(linear.name) in roles:
            stretch.add(linear.reads, linear.axes[1], "K")


def _write(stretch: Stretch, linears: Sequence[Linear], roles: Sequence[str]) -> None:
    for linear in linears:
        if role_of(linear.name) in roles:
            stretch.add(linear.outer[0], linear.axes[0], "N")
            stretch.places += [Place(bias, 0) for bias in linear.biases]


def slicing_configs(side: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the slicing configs among the side files."""
    return {file: config for file, config in side.items() if "embedding_dimensions" in config}


def with_stretches(
    config: Mapping[str, Any], stream: Sequence[Stretch], sizes: NewSizes
) -> dict[str, Any]:
    """Return a slicing config with the new sizes of the stretches."""
    new = {key: dict(value) if isinstance(value, dict) else value for key, value in config.items()}
    for stretch in stream:
        for table, *layer in stretch.keys:
            if stretch.name not in sizes:
                continue
            if not layer:
                new[table] = sizes[stretch.name]
            elif layer[0] in new.get(table, {}):
                new[table][layer[0]] = sizes[stretch.name]
    return new
