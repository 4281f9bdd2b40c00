"""A linear layer as found among the tensors: dense, or a chain of factors, or packed.

``y = outer · (inner · x) + bias``: ``inner`` [r, in] runs first, ``outer`` [out, r] second.
A dense layer has no inner; a grouped one (PaLU) has one outer per group, each reading its own
section of inner's output.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..dtypes import FLOATING
from .base import Contents
from .names import is_embedding, is_transposed

_PACKING = (".weight_scale", ".weight_scale_inv", ".weight_packed", ".weight.absmax")


@dataclass(frozen=True)
class Linear:
    """``name`` is the module's; the rest are tensor names.

    ``biases`` are as many as outer, or none. ``packed`` is the true (out, in) where the weight
    is stored packed. ``frozen`` says why no dim of this layer may change, if so.
    ``transposed`` weights are stored as [in, out].
    """

    name: str
    outer: tuple[str, ...]
    inner: str | None = None
    biases: tuple[str, ...] = ()
    transposed: bool = False
    packed: tuple[int, int] | None = None
    frozen: str = ""

    @property
    def out_axis(self) -> int:
        return 1 if self.transposed else 0

    @property
    def tensors(self) -> tuple[str, ...]:
        inner = (self.inner,) if self.inner else ()
        return inner + self.outer + self.biases

    def out_features(self, contents: Contents) -> int:
        if self.packed:
            return self.packed[0]
        return sum(contents.shape(t)[self.out_axis] for t in self.outer)

    def in_features(self, contents: Contents) -> int:
        if self.packed:
            return self.packed[1]
        return contents.shape(self.inner or self.outer[0])[1 - self.out_axis]


def bias_of(contents: Contents, module: str) -> tuple[str, ...]:
    """The bias beside a weight, if there is one."""
    name = f"{module}.bias"
    return (name,) if name in contents.tensors else ()


def dense_linears(contents: Contents, taken: Iterable[Linear] = ()) -> Iterator[Linear]:
    """Every two-dimensional ``X.weight`` that is not an embedding and not already ``taken``."""
    known = {tensor for linear in taken for tensor in linear.tensors}
    for name, info in contents.tensors.items():
        if name in known or not name.endswith(".weight") or len(info.shape) != 2:
            continue
        module = name.removesuffix(".weight")
        if is_embedding(module) or info.dtype not in FLOATING:
            continue
        scaled = any(f"{module}{suffix}" in contents.tensors for suffix in _PACKING)
        yield Linear(
            module,
            (name,),
            biases=bias_of(contents, module),
            transposed=is_transposed(module),
            frozen="its weight is scaled block by block, and the scales are not resized"
            if scaled
            else "",
        )
