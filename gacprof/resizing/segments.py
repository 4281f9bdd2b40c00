"""A resized axis as a sequence of segments: the arithmetic of resizing.

A segment holds entries of the source, zeros, or combinations of entries. Several dims can share
one axis (PaLU's groups in ``VT``), so each contributes the segments of its own stretch, and
:func:`compose` fills what lies between with the source's own entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gacprof.core import factors
from gacprof.core.errors import CheckpointError

Array = NDArray[Any]

CHUNK_BYTES = 4 << 20
"""Large enough that the loop costs nothing, small enough to stay in the processor's cache."""


@dataclass(frozen=True)
class Zeros:
    """``size`` entries that are zero."""

    size: int

    def section(self, start: int, stop: int) -> Zeros:
        return Zeros(min(stop, self.size) - start)

    def read(self, source: Array, axis: int, dtype: str) -> Array:
        return np.zeros((*source.shape[:axis], self.size, *source.shape[axis + 1 :]), source.dtype)


@dataclass(frozen=True)
class Take:
    """The entries at ``index`` in the source axis, in this order; every bit is kept."""

    index: range | tuple[int, ...]

    @property
    def size(self) -> int:
        return len(self.index)

    def section(self, start: int, stop: int) -> Take:
        return Take(self.index[start:stop])

    def read(self, source: Array, axis: int, dtype: str) -> Array:
        if isinstance(self.index, range):  # a view, not a copy
            return source[_at_axis(axis, slice(self.index.start, self.index.stop))]
        return np.take(source, self.index, axis=axis)


@dataclass(frozen=True, eq=False)
class Mix:
    """Combinations of the entries from ``start`` of a matrix: ``matrix`` is [old, new] in float64.

    New entry ``j`` is ``Σᵢ matrix[i, j] · source[start + i]``, computed in float64.
    """

    start: int
    matrix: NDArray[np.float64]

    @property
    def size(self) -> int:
        return int(self.matrix.shape[1])

    def section(self, start: int, stop: int) -> Mix:
        return Mix(self.start, self.matrix[:, start:stop])

    def read(self, source: Array, axis: int, dtype: str) -> Array:
        values = source[_at_axis(axis, slice(self.start, self.start + self.matrix.shape[0]))]
        if axis == 1:
            return factors.narrow(factors.widen(values, dtype) @ self.matrix, dtype)
        step = max(1, CHUNK_BYTES // (8 * max(1, len(values))))  # so that little is widened at once
        mixed = [
            factors.narrow(self.matrix.T @ factors.widen(values[:, at : at + step], dtype), dtype)
            for at in range(0, values.shape[1], step)
        ]
        return np.concatenate(mixed, axis=1)


Segment = Zeros | Take | Mix
Axes = Mapping[int, Sequence[Segment]]


@dataclass(frozen=True)
class Stretch:
    """``size`` entries of an axis from ``start``, to be replaced by ``segments``."""

    start: int
    size: int
    segments: tuple[Segment, ...]


def compose(length: int, stretches: Iterable[Stretch]) -> tuple[Segment, ...]:
    """The segments of a whole axis of ``length``, of which some stretches are replaced.

    Raises :class:`CheckpointError` where stretches overlap or leave the axis.
    """
    segments: list[Segment] = []
    at = 0
    for stretch in sorted(stretches, key=lambda s: s.start):
        if stretch.start < at or stretch.start + stretch.size > length:
            raise CheckpointError(
                f"entries {stretch.start} to {stretch.start + stretch.size} of an axis of "
                f"{length} overlap another dim or leave the axis"
            )
        segments += [Take(range(at, stretch.start)), *stretch.segments]
        at = stretch.start + stretch.size
    segments.append(Take(range(at, length)))
    return tuple(segment for segment in segments if segment.size)


def new_shape(shape: Sequence[int], axes: Axes) -> tuple[int, ...]:
    """The shape of a tensor after its axes are replaced by their segments."""
    return tuple(sum(s.size for s in axes[i]) if i in axes else n for i, n in enumerate(shape))


def apply(source: Array, axis: int, segments: Sequence[Segment], dtype: str) -> Array:
    """``source`` with one axis replaced by its segments. ``dtype`` is the elements' torch name."""
    read = [segment.read(source, axis, dtype) for segment in segments]
    return read[0] if len(read) == 1 else np.concatenate(read, axis=axis)


def stream(
    source: Array, axes: Axes, dtype: str, chunk_bytes: int = CHUNK_BYTES
) -> Iterator[Array]:
    """The resized tensor as consecutive C-contiguous blocks along axis 0.

    ``source`` may be memory-mapped: it is read block by block. Peak extra memory is a few times
    ``chunk_bytes``, or for combined entries of axis 0 a few blocks of all its rows.
    """
    if source.ndim == 0:
        yield np.ascontiguousarray(source)
        return
    wide, widened = (
        source.itemsize * int(np.prod((1, *shape[1:]), dtype=np.int64))
        for shape in (source.shape, new_shape(source.shape, axes))
    )
    step = max(1, chunk_bytes // max(1, wide, widened))
    for segment in axes.get(0, (Take(range(len(source))),)):
        for start in range(0, segment.size, step):
            block = segment.section(start, start + step).read(source, 0, dtype)
            for axis in axes.keys() - {0}:
                block = apply(block, axis, axes[axis], dtype)
            yield np.ascontiguousarray(block)


def _at_axis(axis: int, index: slice) -> tuple[slice, ...]:
    return (slice(None),) * axis + (index,)
