"""One tensor's new bytes, in order, a few megabytes at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from gacprof.core import factors
from gacprof.resizing.extension import Source
from gacprof.resizing.pieces import Array, Copy, Mix, Piece, Take, Zeros, apply, size_of

CHUNK_BYTES = 4 << 20
"""Large enough that the loop costs nothing, small enough to stay in the processor's cache."""

Axes = Mapping[int, Sequence[Piece]]


def new_shape(shape: Sequence[int], axes: Axes) -> tuple[int, ...]:
    """The shape of a tensor after its axes are replaced by their pieces."""
    return tuple(size_of(axes[i]) if i in axes else n for i, n in enumerate(shape))


def rows(source: Source, axes: Axes, dtype: str, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Array]:
    """The edited tensor as consecutive C-contiguous blocks along axis 0.

    ``source`` may be memory-mapped: it is read block by block. ``dtype`` is the elements'
    torch name. Peak extra memory is a few times ``chunk_bytes``, or for combined entries of
    axis 0 (a redistributed factor) a few blocks of all its rows.
    """
    if isinstance(source, np.ndarray) and source.ndim == 0:
        yield np.ascontiguousarray(source)
        return
    shape = new_shape(source.shape, axes)
    row_bytes = source.itemsize * int(np.prod((*shape[1:], 1), dtype=np.int64))
    wide = source.itemsize * int(np.prod((*source.shape[1:], 1), dtype=np.int64))
    step = max(1, chunk_bytes // max(1, row_bytes, wide))
    inner = {axis: pieces for axis, pieces in axes.items() if axis > 0}
    for piece in axes.get(0, (Copy(0, source.shape[0]),)):
        for start in range(0, piece.size, step):
            stop = min(start + step, piece.size)
            if isinstance(piece, Zeros):
                yield np.zeros((stop - start, *shape[1:]), source.dtype)
                continue
            block = _block(source, piece, start, stop, dtype)
            for axis, pieces in inner.items():
                block = apply(block, axis, pieces, dtype)
            yield np.ascontiguousarray(block)


def _block(source: Source, piece: Copy | Take | Mix, start: int, stop: int, dtype: str) -> Array:
    """Entries ``start`` to ``stop`` of a piece of axis 0."""
    if isinstance(piece, Copy):
        return source[piece.start + start : piece.start + stop]
    if isinstance(piece, Take):
        return source[np.asarray(piece.indices[start:stop])]
    return _mixed_rows(source[piece.start : piece.stop], piece.matrix[:, start:stop], dtype)


def _mixed_rows(source: Array, matrix: Array, dtype: str) -> Array:
    """``matrixᵀ · source``, column block by column block, so that little is widened at once."""
    flat = source.reshape(source.shape[0], -1)
    result = np.empty((matrix.shape[1], flat.shape[1]), source.dtype)
    step = max(1, CHUNK_BYTES // (8 * max(1, flat.shape[0])))
    for start in range(0, flat.shape[1], step):
        values = factors.widen(np.ascontiguousarray(flat[:, start : start + step]), dtype)
        result[:, start : start + step] = factors.narrow(matrix.T @ values, dtype)
    return result.reshape(matrix.shape[1], *source.shape[1:])
