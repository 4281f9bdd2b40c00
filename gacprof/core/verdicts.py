"""Verdicts on many sizes of one dim as arrays, whose sentences are made for the sizes looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gacprof.core.sizes import SizeVerdict, seems_safe

Ints = NDArray[np.int64]
Bools = NDArray[np.bool]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Verdicts:
    """A source's answer for ascending ``sizes`` of a dim: a sequence of verdicts.

    ``is_known`` and ``may_be_chosen`` are masks over the sizes: a size of verdict *unknown* is not
    known, one that :func:`~gacprof.core.sizes.seems_safe` may be chosen. ``at`` makes the verdict
    on the size at an index.
    """

    sizes: Ints
    is_known: Bools
    may_be_chosen: Bools
    at: Callable[[int], SizeVerdict]

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> SizeVerdict:
        return self.at(range(len(self))[index])

    def __iter__(self) -> Iterator[SizeVerdict]:
        return map(self.at, range(len(self)))

    @property
    def offered(self) -> Ints:
        """The sizes that may be chosen."""
        return self.sizes[self.may_be_chosen]

    @property
    def refused(self) -> Ints:
        """The sizes that are known and may not be chosen."""
        return self.sizes[self.is_known & ~self.may_be_chosen]

    def of(self, size: int) -> SizeVerdict | None:
        """Return the verdict on a size; None where it was not asked for."""
        index = int(np.searchsorted(self.sizes, size))
        return self.at(index) if index < len(self) and self.sizes[index] == size else None

    def where(self, mask: Bools) -> Verdicts:
        """Return the verdicts on some of the sizes."""
        indices = np.flatnonzero(mask)
        return Verdicts(
            self.sizes[indices],
            self.is_known[indices],
            self.may_be_chosen[indices],
            lambda index: self.at(int(indices[index])),
        )

    def next_choice(self, size: int, limit: int, step: int = 1) -> SizeVerdict | None:
        """Return the verdict on the next larger multiple of a step, up to a limit, that may be
        chosen."""
        is_larger = (self.sizes > size) & (self.sizes <= limit) & (self.sizes % step == 0)
        indices = np.flatnonzero(is_larger & self.may_be_chosen)
        return self.at(int(indices[0])) if indices.size else None


def as_verdicts(answer: Verdicts | Sequence[SizeVerdict], tolerance: float) -> Verdicts:
    """Return a source's answer, which may be a list, as arrays."""
    if isinstance(answer, Verdicts):
        return answer
    return Verdicts(
        np.array([verdict.size for verdict in answer], int),
        np.array([verdict.verdict != "unknown" for verdict in answer], bool),
        np.array([seems_safe(verdict, tolerance) for verdict in answer], bool),
        answer.__getitem__,
    )
