"""An axis cut into pieces and put together again: the arithmetic of resizing.

A resized axis is a sequence of pieces: copied entries, zeros, chosen entries, or combinations
of entries. Several dims can share one axis (PaLU's groups in ``VT``), so each contributes the
pieces of its own stretch and :func:`compose` fills what lies between with copies.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gacprof.core import factors
from gacprof.core.errors import CheckpointError

Array = NDArray[Any]


@dataclass(frozen=True)
class Copy:
    """Entries ``start`` to ``stop`` of the source axis, unchanged."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Zeros:
    """``size`` entries that are zero."""

    size: int


@dataclass(frozen=True)
class Take:
    """The entries ``indices`` (positions in the source axis, in this order)."""

    indices: tuple[int, ...]

    @property
    def size(self) -> int:
        return len(self.indices)


@dataclass(frozen=True, eq=False)
class Mix:
    """Combinations of the entries from ``start``: ``matrix`` is [old, new] in float64.

    New entry ``j`` is ``Σᵢ matrix[i, j] · source[start + i]``.
    """

    start: int
    matrix: Array

    @property
    def size(self) -> int:
        return int(self.matrix.shape[1])

    @property
    def stop(self) -> int:
        return self.start + int(self.matrix.shape[0])


Piece = Copy | Zeros | Take | Mix


@dataclass(frozen=True)
class Stretch:
    """``size`` entries of an axis from ``start``, to be replaced by ``pieces``."""

    start: int
    size: int
    pieces: tuple[Piece, ...]


def compose(length: int, stretches: Iterable[Stretch]) -> tuple[Piece, ...]:
    """The pieces of a whole axis of ``length``, of which some stretches are replaced.

    Raises :class:`CheckpointError` where stretches overlap or leave the axis.
    """
    pieces: list[Piece] = []
    at = 0
    for stretch in sorted(stretches, key=lambda s: s.start):
        if stretch.start < at or stretch.start + stretch.size > length:
            raise CheckpointError(
                f"entries {stretch.start} to {stretch.start + stretch.size} of an axis of "
                f"{length} overlap another dim or leave the axis"
            )
        pieces += [Copy(at, stretch.start), *stretch.pieces]
        at = stretch.start + stretch.size
    pieces.append(Copy(at, length))
    return _joined(pieces)


def _joined(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    """The same axis without empty pieces, neighbouring copies and zeros made one."""
    result: list[Piece] = []
    for piece in pieces:
        last = result[-1] if result else None
        if piece.size == 0:
            continue
        if isinstance(piece, Copy) and isinstance(last, Copy) and last.stop == piece.start:
            result[-1] = Copy(last.start, piece.stop)
        elif isinstance(piece, Zeros) and isinstance(last, Zeros):
            result[-1] = Zeros(last.size + piece.size)
        else:
            result.append(piece)
    return tuple(result)


def size_of(pieces: Sequence[Piece]) -> int:
    return sum(piece.size for piece in pieces)


def is_whole(pieces: Sequence[Piece], length: int) -> bool:
    """Whether the pieces are the axis as it was."""
    return tuple(pieces) in ((Copy(0, length),), ())


def apply(source: Array, axis: int, pieces: Sequence[Piece], dtype: str) -> Array:
    """``source`` with one axis replaced by its pieces. ``dtype`` is the elements' torch name.

    Copies, zeros and choices keep every bit; combinations are computed in float64.
    """
    if is_whole(pieces, source.shape[axis]):
        return source
    if len(pieces) == 1 and not isinstance(pieces[0], Zeros):
        return _part(source, axis, pieces[0], dtype)
    shape = list(source.shape)
    shape[axis] = size_of(pieces)
    result = np.zeros(shape, source.dtype)
    at = 0
    for piece in pieces:
        if not isinstance(piece, Zeros):
            target = _along(axis, slice(at, at + piece.size))
            result[target] = _part(source, axis, piece, dtype)
        at += piece.size
    return result


def _part(source: Array, axis: int, piece: Copy | Take | Mix, dtype: str) -> Array:
    if isinstance(piece, Copy):
        return source[_along(axis, slice(piece.start, piece.stop))]
    if isinstance(piece, Take):
        return np.take(source, piece.indices, axis=axis)
    values = factors.widen(source[_along(axis, slice(piece.start, piece.stop))], dtype)
    mixed = np.moveaxis(np.tensordot(values, piece.matrix, axes=(axis, 0)), -1, axis)
    return factors.narrow(mixed, dtype)


def _along(axis: int, index: slice) -> tuple[slice, ...]:
    return (slice(None),) * axis + (index,)
