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
from gacprof.checkpoint.layouts.linear import Linear, stored_linear
from gacprof.checkpoint.layouts.names import layer_of, names_below, role_of
from gacprof.core.errors import CheckpointError

ATTENTION, MLP = ".attn_shortcut_Q", ".mlp_shortcut_Q"

_STEPS = {
    ATTENTION: ("attn", ("attention",), ("q", "k", "v", "qkv"), ("o",)),
    MLP: ("mlp", ("mlp",), ("gate", "up", "gate_up"), ("down",)),
}
"""By the shortcut: the step's name, its words in the side JSON, the roles that read the stream
before it and those that write the stream after it."""
_PARALLEL = {
    ATTENTION: (
        "block",
        ("attention", "mlp"),
        ("q", "k", "v", "qkv", "gate", "up", "gate_up"),
        ("o", "down"),
    )
}
"""The one step of layers whose attention and MLP stand beside each other."""


def shortcut_linears(contents: Contents) -> list[Linear]:
    """Each shortcut is a product of its own; its matrix is stored as [in, out]."""
    names = [name for name in contents.tensors if name.endswith((ATTENTION, MLP))]
    return [stored_linear(contents, name, name, axes=(1, 0)) for name in names]


@dataclass
class Stretch:
    """The residual stream between two shortcuts. ``keys`` are its entries in the side JSON."""

    name: str
    layer: int | None
    places: list[Place] = field(default_factory=list)
    feeds: list[Feed] = field(default_factory=list)
    keys: list[tuple[str, ...]] = field(default_factory=list)

    def read_by(self, linears: Sequence[Linear], roles: Sequence[str]) -> None:
        for linear in linears:
            if role_of(linear.name) in roles:
                self.places.append(Place(linear.reads, linear.axes[1]))
                self.feeds.append(Feed(linear.reads, "K"))

    def written_by(self, linears: Sequence[Linear], roles: Sequence[str]) -> None:
        for linear in linears:
            if role_of(linear.name) in roles:
                self.places.append(Place(linear.outer[0], linear.axes[0]))
                self.places += [Place(bias, 0) for bias in linear.biases]
                self.feeds.append(Feed(linear.outer[0], "N"))

    def dim(self, contents: Contents) -> Dim:
        """The stretch as a dim. Raises :class:`CheckpointError` where its tensors disagree."""
        sizes = {contents.shape(place.tensor)[place.axis] for place in self.places}
        if len(sizes) != 1:
            raise CheckpointError(
                f"{self.name}: the weights at this stretch of the residual stream have sizes "
                f"{sorted(sizes)[:6]}, which should be one size: fetch the checkpoint again"
            )
        size = sizes.pop()
        return Dim(
            name=self.name,
            kind="hidden",
            size=size,
            places=tuple(self.places),
            feeds=tuple(self.feeds),
            params_per_unit=sum(contents.tensors[p.tensor].numel // size for p in self.places),
            layer=self.layer,
            role="hidden",
        )


def stretches(
    contents: Contents, linears: Sequence[Linear], tables: Sequence[str]
) -> list[Stretch]:
    """Return the stretches in order: after the embedding ``tables``, then after each shortcut."""
    blocks = [n.removesuffix(ATTENTION) for n in contents.tensors if n.endswith(ATTENTION)]
    by_name = {linear.name: linear for linear in linears}
    below = names_below(blocks, by_name)
    before = Stretch("embedding:hidden", None, [Place(name, 1) for name in tables])
    before.keys.append(("embedding_dimensions", "0"))
    stream = [before] if blocks else []
    for block in sorted(blocks, key=lambda name: layer_of(name) or 0):
        layer = layer_of(block) or 0
        inside = [by_name[name] for name in below[block]]
        steps = _STEPS if block + MLP in contents.tensors else _PARALLEL
        for ending, (short, words, readers, writers) in steps.items():
            after = Stretch(f"{block}.{short}:hidden", layer, [Place(block + ending, 1)])
            after.feeds.append(Feed(block + ending, "N"))
            after.written_by(inside, writers)
            after.keys += [(f"{word}_output_dimensions", str(layer)) for word in words]
            before.places.append(Place(block + ending, 0))
            before.feeds.append(Feed(block + ending, "K"))
            before.read_by(inside, readers)
            before.keys += [(f"{word}_input_dimensions", str(layer)) for word in words]
            before = after
            stream.append(after)
    before.read_by(linears, ["head"])
    before.keys.append(("head_dimension",))
    return stream


def with_stretches(
    config: Mapping[str, Any], stream: Sequence[Stretch], sizes: NewSizes
) -> dict[str, Any]:
    """Return a slicing config with the new sizes of the stretches."""
    new = {key: dict(value) if isinstance(value, dict) else value for key, value in config.items()}
    for stretch in stream:
        for table, *layer in stretch.keys:
            if stretch.name in sizes:
                entries, key = (new[table], layer[0]) if layer else (new, table)
                entries[key] = sizes[stretch.name]
    return new
