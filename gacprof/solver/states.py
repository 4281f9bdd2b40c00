"""Partial choices of a core's classes, all at once, and what leads back from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gacprof.solver.problem import Floats, Ints

Whole = NDArray[Any]
"""int64, or Python integers where 64 bits are too few."""


@dataclass(frozen=True)
class States:
    """Partial choices, one per entry; ``before`` and ``move`` (0: the reference) lead back."""

    weights: list[Whole]
    gain: Whole
    rho: Floats
    before: Ints
    move: Ints

    def only(self, keep: Ints) -> States:
        return States(
            [w[keep] for w in self.weights],
            self.gain[keep],
            self.rho[keep],
            self.before[keep],
            self.move[keep],
        )

    @property
    def trail(self) -> Trail:
        return Trail(self.before.astype(np.int32), self.move.astype(np.int32))


class OverQuotaError(Exception):
    """The next step would be more work than is allowed, and more memory than is wanted."""


@dataclass(frozen=True)
class Trail:
    """What leads back from the states after a class: all that is kept of them."""

    before: NDArray[np.int32]
    move: NDArray[np.int32]


@dataclass(frozen=True)
class Rest:
    """What the classes not yet merged can do: their common measure, and their dual per ray."""

    measure: int
    dual: Floats


@dataclass(frozen=True)
class Found:
    """A choice: state ``state`` after class ``last``, a candidate, and a chain of tail states."""

    last: int
    state: int
    item: int | None = None
    tail: tuple[tuple[int, int], ...] = ()
