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


@dataclass(frozen=True)
class Step:
    """Attention or MLP of a layer: its shortcut, its word in the side JSON, and the roles of the
    weights that read the stream before it and write the stream after it."""

    shortcut: str
    name: str
    word: str
    readers: tuple[str, ...]
    writer: str


STEPS = (
    Step(ATTENTION, "attn", "attention", ("q", "k", "v", "qkv"), "o"),
    Step(MLP, "mlp", "mlp", ("gate", "up", "gate_up"), "down"),
)


def shortcut_linears(contents: Contents) -> list[Linear]:
    """Each shortcut is a product of its own; its matrix is stored as [in, out]."""
    names = [name for name in contents.tensors if name.endswith((ATTENTION, MLP))]
    return [stored_linear(contents, name, name, axes=(1, 0)) for name in names]


@dataclass
class Stretch:
    """The residual stream between two shortcuts. ``keys`` are its entries in the side JSON."""

    name: str
    layer: int | None = None
    places: list[Place] = field(default_factory=list)
    feeds: list[Feed] = field(default_factory=list)
    keys: list[tuple[str, ...]] = field(default_factory=list)

    def read_by(self, linear: Linear) -> None:
        self.places.append(Place(linear.reads, linear.axes[1]))
        self.feeds.append(Feed(linear.reads, "K"))

    def written_by(self, linear: Linear) -> None:
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
    by_name = {linear.name: linear for linear in linears}
    blocks = [name.removesuffix(MLP) for name in by_name if name.endswith(MLP)]
    below = names_below(blocks, by_name)
    before = Stretch("embedding:hidden", places=[Place(name, 1) for name in tables])
    before.keys.append(("embedding_dimensions", "0"))
    stream = [before]
    for block in sorted(blocks, key=lambda name: layer_of(name) or 0):
        layer = layer_of(block) or 0
        roles = {name: role_of(name) for name in below[block]}
        for step in STEPS:
            after = Stretch(f"{block}.{step.name}:hidden", layer)
            after.written_by(by_name[block + step.shortcut])
            before.read_by(by_name[block + step.shortcut])
            for name, role in roles.items():
                if role in step.readers:
                    before.read_by(by_name[name])
                elif role == step.writer:
                    after.written_by(by_name[name])
            before.keys.append((f"{step.word}_input_dimensions", str(layer)))
            after.keys.append((f"{step.word}_output_dimensions", str(layer)))
            before = after
            stream.append(after)
    for linear in linears:
        if role_of(linear.name) == "head":
            before.read_by(linear)
    before.keys.append(("head_dimension",))
    return stream if blocks else []


def with_stretches(
    config: Mapping[str, Any], stream: Sequence[Stretch], sizes: NewSizes
) -> dict[str, Any]:
    """Return a slicing config with the new sizes of the stretches."""
    new: dict[str, Any] = dict(config)
    for stretch in stream:
        for table, *layer in stretch.keys if stretch.name in sizes else ():
            size = sizes[stretch.name]
            new[table] = {**new[table], layer[0]: size} if layer else size
    return new
