"""SliceGPT: the residual stream is cut, and ``attn_shortcut_Q``, ``mlp_shortcut_Q`` carry it.

Every stretch of the residual stream between two shortcuts is one dim: it is written in the weights
that produce it (o, down, embedding), in those that read it (q, k, v, gate, up, head) and in the two
shortcut matrices [in, out] at its ends. The norms have no weights and divide by the *original*
hidden size, so zeros in the stream change nothing (microsoft/TransformerCompression,
slicegpt/rotate.py, modules.py). A JSON file beside the weights has all sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gacprof.checkpoint.inventory import Contents, Dim, Feed, Module, NewSizes, Place
from gacprof.checkpoint.layouts.linear import Linear, stored_linear
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
    """The residual stream between two shortcuts."""

    name: str
    layer: int | None = None
    places: list[Place] = field(default_factory=list)
    feeds: list[Feed] = field(default_factory=list)

    def read_by(self, linear: Linear) -> None:
        self.places.append(Place(linear.weights[0], linear.axes[1]))
        self.feeds.append(Feed(linear.weights[0], "K"))

    def written_by(self, linear: Linear) -> None:
        self.places.append(Place(linear.weights[-1], linear.axes[0]))
        self.places += [Place(bias, 0) for bias in linear.biases]
        self.feeds.append(Feed(linear.weights[-1], "N"))

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
    contents: Contents, linears: Sequence[Linear], embeddings: Sequence[Module]
) -> list[Dim]:
    """Return the stretches: after the embeddings, then after each shortcut."""
    by_name = {linear.name: linear for linear in linears}
    blocks = [linear for linear in linears if linear.name.endswith(MLP)]
    tables = [Place(f"{module.name}.weight", 1) for module in embeddings]
    before = Stretch("embedding:hidden", places=tables)
    stream = [before]
    for block in sorted(blocks, key=lambda linear: linear.layer or 0):
        name = block.name.removesuffix(MLP)
        parts = [linear for linear in linears if linear.name.startswith(f"{name}.")]
        for step in STEPS:
            shortcut = by_name[name + step.shortcut]
            after = Stretch(f"{name}.{step.name}:hidden", block.layer or 0)
            after.written_by(shortcut)
            before.read_by(shortcut)
            for linear in parts:
                if linear.role in step.readers:
                    before.read_by(linear)
                elif linear.role == step.writer:
                    after.written_by(linear)
            before = after
            stream.append(after)
    for linear in linears:
        if linear.role == "head":
            before.read_by(linear)
    return [stretch.dim(contents) for stretch in stream if blocks]


def with_stretches(
    config: Mapping[str, Any], dims: Iterable[Dim], sizes: NewSizes
) -> dict[str, Any]:
    """Return a slicing config with the new sizes of the stretches."""
    stream = [dim for dim in dims if dim.kind == "hidden"]
    stream.sort(key=lambda dim: dim.layer is not None)  # the embedding's is the first
    words = {step.name: step.word for step in STEPS}
    new: dict[str, Any] = dict(config)
    ends = [""] + [words[dim.name.rpartition(".")[2].removesuffix(":hidden")] for dim in stream[1:]]
    for i, dim in enumerate(stream):
        if dim.name not in sizes:
            continue
        size = sizes[dim.name]
        entries = {"embedding_dimensions": "0"}
        if i > 0:
            entries = {f"{ends[i]}_output_dimensions": str(dim.layer)}
        if dim == stream[-1]:
            new["head_dimension"] = size
        else:
            entries[f"{ends[i + 1]}_input_dimensions"] = str(stream[i + 1].layer)
        for table, layer in entries.items():
            new[table] = {**new[table], layer: size}
    return new
