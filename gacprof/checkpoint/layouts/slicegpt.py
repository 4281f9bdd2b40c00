"""SliceGPT: the residual stream is cut, and ``attn_shortcut_Q``, ``mlp_shortcut_Q`` carry it.

Every stretch between two shortcuts is one dim; a JSON file beside the weights has all sizes. Norms
have no weights and divide by the *original* hidden size, so zeros in the stream change nothing
(microsoft/TransformerCompression, slicegpt/rotate.py, modules.py).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gacprof.checkpoint.inventory import Contents, Dim, Feed, Module, NewSizes, Place
from gacprof.checkpoint.layouts.linear import Linear, stored_linear
from gacprof.core.errors import CheckpointError

ATTENTION, MLP = ".attn_shortcut_Q", ".mlp_shortcut_Q"
STEPS = (("attn", ("q", "k", "v", "qkv"), "o"), ("mlp", ("gate", "up", "gate_up"), "down"))
"""Attention and MLP of a layer: its name, and the roles that read and write the stream."""


def shortcut_linears(contents: Contents) -> list[Linear]:
    """Return each shortcut as a product of its own; its matrix is stored as [in, out]."""
    names = [name for name in contents.tensors if name.endswith((ATTENTION, MLP))]
    return [stored_linear(contents, name, name, axes=(1, 0)) for name in names]


@dataclass
class Stretch:
    """A stretch of the residual stream, between two shortcuts."""

    name: str
    layer: int | None = None
    places: list[Place] = field(default_factory=list)
    feeds: list[Feed] = field(default_factory=list)

    def add(self, linears: Iterable[Linear], side: Literal["N", "K"]) -> None:
        """Add weights that write the stream here (N), with their biases, or that read it (K)."""
        for linear in linears:
            self.feeds.append(Feed(linear.weights[0], side))
            self.places.append(Place(linear.weights[0], linear.axes["NK".index(side)]))
            if side == "N":
                self.places += [Place(bias, 0) for bias in linear.biases]

    def dim(self, contents: Contents) -> Dim:
        """Return the stretch as a dim. Raises :class:`CheckpointError` where tensors disagree."""
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
            never_cut="many weights share its entries, which have no order",
        )


def stretches(
    contents: Contents, linears: Sequence[Linear], embeddings: Sequence[Module]
) -> list[Dim]:
    """Return the stretches: after the embeddings, then after each shortcut."""
    blocks = [linear for linear in linears if linear.name.endswith(MLP)]
    blocks.sort(key=lambda linear: linear.layer or 0)
    tables = [Place(f"{module.name}.weight", 1) for module in embeddings]
    stream = [Stretch("embedding:hidden", places=tables)]
    for block in blocks:
        name = block.name.removesuffix(MLP)
        parts = [linear for linear in linears if linear.name.startswith(f"{name}.")]
        for step, readers, writer in STEPS:
            shortcut = [x for x in parts if x.name == f"{name}.{step}_shortcut_Q"]
            stream[-1].add(shortcut + [x for x in parts if x.role in readers], "K")
            stream.append(Stretch(f"{name}.{step}:hidden", block.layer or 0))
            stream[-1].add(shortcut + [x for x in parts if x.role == writer], "N")
    stream[-1].add([linear for linear in linears if linear.role == "head"], "K")
    return [stretch.dim(contents) for stretch in stream if blocks]


def with_stretches(
    config: Mapping[str, Any], dims: Iterable[Dim], sizes: NewSizes
) -> dict[str, Any]:
    """Return a slicing config that says the sizes of the stretches, new ones and others."""
    stream = [dim for dim in dims if dim.kind == "hidden"]
    stream.sort(key=lambda dim: dim.layer is not None)  # the embedding's is the first
    words = ["mlp" if dim.name.endswith(".mlp:hidden") else "attention" for dim in stream[1:]]
    written = ["embedding_dimensions"] + [f"{word}_output_dimensions" for word in words]
    after = [sizes.get(dim.name, dim.size) for dim in stream]
    new: dict[str, Any] = dict(config)
    for table, dim, size in zip(written, stream, after, strict=True):
        new[table] = {**new.get(table, {}), str(dim.layer or 0): size}
    for word, reader, size in zip(words, stream[1:], after, strict=False):
        table = f"{word}_input_dimensions"
        new[table] = {**new.get(table, {}), str(reader.layer): size}
    return {**new, "head_dimension": after[-1]} if after else new
