"""A stored tensor with entries added at the end of one axis, without copying what is stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gacprof.resizing.pieces import Array


@dataclass(frozen=True, eq=False)
class Extended:
    """``stored`` (mapped) and then ``added`` along ``axis`` (0 or 1); read by rows."""

    stored: Array
    added: Array
    axis: int

    @property
    def shape(self) -> tuple[int, ...]:
        shape = list(self.stored.shape)
        shape[self.axis] += self.added.shape[self.axis]
        return tuple(shape)

    @property
    def ndim(self) -> int:
        return self.stored.ndim

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.stored.dtype

    @property
    def itemsize(self) -> int:
        return self.stored.itemsize

    def __getitem__(self, rows: slice | Array) -> Array:
        """Whole rows, by a slice or, where columns were added, by their numbers too."""
        if self.axis == 1:
            return np.concatenate([self.stored[rows], self.added[rows]], axis=1)
        if not isinstance(rows, slice):
            raise TypeError("rows of a tensor with added rows are read by slices")
        start, stop, _ = rows.indices(self.shape[0])
        height = len(self.stored)
        below, above = self.stored[start:stop], self.added[max(0, start - height) :]
        return np.concatenate([below, above[: max(0, stop - max(start, height))]])


Source = Array | Extended
