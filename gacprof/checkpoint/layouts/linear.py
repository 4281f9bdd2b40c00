"""A linear layer as found among the tensors: dense, or a chain of factors, or packed.

``y = outer · (inner · x) + bias``: ``inner`` [r, in] runs first, ``outer`` [out, r] second.
A dense layer has no inner; a grouped one (PaLU) has one outer per group, each reading its own
section of inner's output.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gacprof.checkpoint.inventory import Contents
from gacprof.checkpoint.layouts.names import is_embedding, may_be_conv1d
from gacprof.core.dtypes import FLOATING
from gacprof.core.errors import CheckpointError

_SCALES = (".weight_scale", ".weight_scale_inv", ".scales")
_QUANTISED = "its weight is quantised with scales, which are not resized"
MAX_GROUPS = 1024
"""Outer factors of one layer. PaLU writes one per group of heads: 128 at most today."""


@dataclass(frozen=True)
class Packed:
    """A weight whose stored shape is not its true one: true sizes, what it is packed in, and the
    format by its tool's name."""

    out_features: int
    in_features: int
    dtype: str
    kind: str = ""


@dataclass(frozen=True)
class Stack:
    """All experts of a layer in one tensor: ``count`` of them, along an axis of their own or, if
    ``joined``, one after the other along the width. ``interleaved`` gate and up alternate."""

    count: int
    joined: bool = False
    interleaved: bool = False


@dataclass(frozen=True)
class Linear:
    """``name`` is the module's; ``outer``, ``inner`` and ``biases`` are tensor names.

    ``axes`` are the out and in axis of its weights (nn.Linear: 0 and 1). ``biases`` are as
    many as outer, or none. ``frozen`` says why no dim of this layer may change, if so. Of a
    ``stack`` the features are those of one expert.
    """

    name: str
    outer: tuple[str, ...]
    inner: str | None = None
    biases: tuple[str, ...] = ()
    axes: tuple[int, int] = (0, 1)
    packed: Packed | None = None
    stack: Stack | None = None
    frozen: str = ""

    @property
    def tensors(self) -> tuple[str, ...]:
        inner = (self.inner,) if self.inner else ()
        return inner + self.outer + self.biases

    @property
    def reads(self) -> str:
        """The weight that the layer's input is multiplied by first."""
        return self.inner or self.outer[0]

    def out_features(self, contents: Contents) -> int:
        if self.packed:
            return self.packed.out_features
        if len(self.outer) == 1:
            return self._of_one(contents, self.outer[0], self.axes[0])
        return sum(contents.shape(t)[self.axes[0]] for t in self.outer)

    def in_features(self, contents: Contents) -> int:
        if self.packed:
            return self.packed.in_features
        return self._of_one(contents, self.reads, self.axes[1])

    def _of_one(self, contents: Contents, tensor: str, axis: int) -> int:
        """The size of an axis, of one expert where several lie along it."""
        size = contents.shape(tensor)[axis]
        return size // self.stack.count if self.stack and self.stack.joined and not axis else size

    def dtype(self, contents: Contents) -> str:
        return self.packed.dtype if self.packed else contents.tensors[self.outer[0]].dtype

    def parameters_per_output(self, contents: Contents) -> int:
        """Stored parameters per entry of the output, bias included."""
        if self.packed:
            return self.packed.in_features + len(self.biases)
        own = (self.outer[0], *self.biases)
        stored = sum(contents.tensors[tensor].numel for tensor in own)
        return stored // max(1, self.out_features(contents))

    def parameters_per_input(self, contents: Contents) -> int:
        """Stored parameters per entry of the input."""
        if self.packed:
            return self.packed.out_features
        return contents.tensors[self.reads].numel // max(1, self.in_features(contents))


def bias_of(contents: Contents, module: str) -> tuple[str, ...]:
    """The bias beside a weight, if there is one."""
    name = f"{module}.bias"
    return (name,) if name in contents.tensors else ()


def factor_chains(contents: Contents, inner: str, outer: str) -> Iterator[Linear]:
    """``X{inner}.weight`` with ``X{outer}.weight``, or one ``X{outer}.{i}.weight`` per group."""
    for name in contents.tensors:
        module = name.removesuffix(f"{inner}.weight")
        if module == name:
            continue
        parts = [f"{module}{outer}"]
        if f"{parts[0]}.weight" not in contents.tensors:
            groups = (f"{module}{outer}.{i}" for i in itertools.count())
            parts = list(itertools.takewhile(lambda p: f"{p}.weight" in contents.tensors, groups))
        if parts:
            weights = tuple(f"{part}.weight" for part in parts)
            biases = tuple(bias for part in parts for bias in bias_of(contents, part))
            biases = biases if len(biases) == len(parts) else ()
            yield Linear(module, weights, inner=name, biases=biases)


def dense_linears(contents: Contents, taken: Iterable[Linear] = ()) -> Iterator[Linear]:
    """Every two-dimensional ``X.weight`` that is not an embedding and not already ``taken``."""
    known = {tensor for linear in taken for tensor in linear.tensors}
    transposed = _has_conv1d(contents)
    scaled = {
        name[: -len(suffix)] for name in contents.tensors for suffix in _SCALES
        if name.endswith(suffix)
    }  # fmt: skip
    for name, info in contents.tensors.items():
        if name in known or not name.endswith(".weight") or len(info.shape) != 2 or not info.numel:
            continue
        module = name.removesuffix(".weight")
        if is_embedding(module) or info.dtype not in FLOATING:
            continue
        yield Linear(
            module,
            (name,),
            biases=bias_of(contents, module),
            axes=(1, 0) if transposed and may_be_conv1d(module) else (0, 1),
            frozen=_QUANTISED if module in scaled else "",
        )


def _has_conv1d(contents: Contents) -> bool:
    """Whether some weight of a Conv1D's name has its bias along axis 1 and not along axis 0."""
    for name, info in contents.tensors.items():
        module = name.removesuffix(".weight")
        if module != name and len(info.shape) == 2 and may_be_conv1d(module):
            bias = contents.tensors.get(f"{module}.bias")
            if bias is not None and bias.shape[:1] != info.shape[:1]:
                return bias.shape == info.shape[1:]
    return False


def check_shapes(contents: Contents, linears: Iterable[Linear]) -> None:
    """Weights are matrices, factors fit each other, biases fit their weights.

    Raises :class:`CheckpointError` naming the tensor; everything later relies on this.
    """
    for linear in linears:
        if linear.packed or linear.stack:  # whose layouts look at their shapes
            continue
        if len(linear.outer) > MAX_GROUPS:
            raise CheckpointError(
                f"{linear.name}: {len(linear.outer)} groups: no model has more than {MAX_GROUPS}"
            )
        for name in (*linear.outer, *((linear.inner,) if linear.inner else ())):
            shape = contents.shape(name)
            if len(shape) != 2 or not contents.tensors[name].numel:
                raise CheckpointError(f"{name}: has shape {shape}, not a matrix's")
        for outer, bias in zip(linear.outer, linear.biases, strict=False):
            if contents.shape(bias) != (contents.shape(outer)[linear.axes[0]],):
                raise CheckpointError(
                    f"{bias}: has shape {contents.shape(bias)}, which does not fit its weight's "
                    f"{contents.shape(outer)}"
                )
        if linear.inner:
            rank = contents.shape(linear.inner)[linear.axes[0]]
            total = sum(contents.shape(u)[linear.axes[1]] for u in linear.outer)
            if rank != total:
                raise CheckpointError(
                    f"{linear.name}: factors do not fit: {linear.inner} gives {rank} entries, "
                    f"{', '.join(linear.outer[:4])} take {total}"
                )
