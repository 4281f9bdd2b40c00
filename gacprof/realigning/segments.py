"""A resized axis as a sequence of segments: the arithmetic of resizing.

A segment holds entries of the source, zeros, or combinations of entries. Several dims can share
one axis (PaLU's groups in ``VT``), so each contributes the segments of its own stretch, and
:func:`compose` fills what lies between with the source's own entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from gacprof.core.errors import CheckpointError


@dataclass(frozen=True)
class Zeros:
    """``size`` entries that are zero."""

    size: int

    def read(self, tensor: torch.Tensor, axis: int) -> torch.Tensor:
        shape = list(tensor.shape)
        shape[axis] = self.size
        return tensor.new_zeros(shape)


@dataclass(frozen=True)
class Take:
    """The entries at ``index`` in the source axis, in this order; every bit is kept."""

    index: Sequence[int]

    def read(self, tensor: torch.Tensor, axis: int) -> torch.Tensor:
        if isinstance(self.index, range):
            return tensor.narrow(axis, self.index.start, len(self.index))
        return tensor.index_select(axis, torch.tensor(self.index, device=tensor.device))


@dataclass(frozen=True, eq=False)
class Mix:
    """Combinations of the entries from ``start``; ``matrix`` is [old, new] in float64.

    New entry ``j`` is ``Σᵢ matrix[i, j] · source[start + i]``, computed in float64.
    """

    start: int
    matrix: torch.Tensor

    def read(self, tensor: torch.Tensor, axis: int) -> torch.Tensor:
        stretch = tensor.narrow(axis, self.start, len(self.matrix)).double()
        mixed = torch.tensordot(stretch, self.matrix, ([axis], [0]))
        return rounded(mixed.movedim(-1, axis), tensor.dtype)


Segment = Zeros | Take | Mix


@dataclass(frozen=True)
class Stretch:
    """``size`` entries of an axis from ``start``, to be replaced by ``segments``."""

    start: int
    size: int
    segments: tuple[Segment, ...]


def compose(length: int, stretches: Iterable[Stretch]) -> list[Segment]:
    """The segments of a whole axis of ``length``, of which disjoint stretches are replaced."""
    segments: list[Segment] = []
    end = 0
    for stretch in sorted(stretches, key=lambda s: s.start):
        segments += [Take(range(end, stretch.start)), *stretch.segments]
        end = stretch.start + stretch.size
    return [*segments, Take(range(end, length))]


def resized(tensor: torch.Tensor, axis: int, segments: Iterable[Segment]) -> torch.Tensor:
    """``tensor`` with one axis replaced by its segments, in the same dtype."""
    return torch.cat([segment.read(tensor, axis) for segment in segments], dim=axis)


def rounded(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """float64 values rounded to ``dtype``, to nearest, ties to even.

    Raises :class:`CheckpointError` where a finite value overflows the type.
    """
    narrow = values.to(dtype)
    if not torch.equal(narrow.isfinite(), values.isfinite()):
        raise CheckpointError(f"a computed weight does not fit {dtype}: it overflows")
    return narrow
