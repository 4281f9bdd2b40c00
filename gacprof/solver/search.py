"""What a search for the best choice knows at any moment, and what it may spend."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from gacprof.solver.integers import exact_sum
from gacprof.solver.problem import Ints, Knapsack

RESOLUTION = 2.0**-47
"""Gaps within this part of Σ|value|, some 7e-15, are the rounding of the values themselves."""

Progress = Callable[[float, float], None]
"""Called with the incumbent's value and the bound whenever one of them moves."""


class OutOfTimeError(Exception):
    pass


@dataclass
class Caps:
    """What may be spent. ``check`` raises when the time is over."""

    work: int
    deadline: float | None = None
    progress: Progress | None = None
    spent: int = 0

    def check(self) -> None:
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise OutOfTimeError

    def report(self, value: float, bound: float) -> None:
        if self.progress is not None and value > -math.inf:
            self.progress(value, bound)


@dataclass
class Search:
    """The state of one optimisation: valid at any moment, so that it may be cut short."""

    knapsack: Knapsack
    feasible: Callable[[], Ints] | None = None
    incumbent: Ints | None = None
    value: float = -math.inf
    bound: float = math.inf
    complete: bool = False
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def total(self, choice: Ints) -> float:
        return math.fsum(self.knapsack.values[choice].tolist())

    def settle_for_less(self) -> bool:
        """Cut short before a first incumbent: take the least of each class, should it fit."""
        for weight in self.knapsack.weights:
            if self.incumbent is None:
                least = np.minimum.reduceat(weight, self.knapsack.starts)
                at = np.flatnonzero(weight == least[self.knapsack.owner])
                classes = np.arange(self.knapsack.classes)
                self.offer(at[np.searchsorted(self.knapsack.owner[at], classes)])
        if not math.isfinite(self.bound):
            best = self.knapsack.most_valued()
            self.bound = math.fsum(self.knapsack.values[best].tolist())
        return self.incumbent is not None

    def nothing_better(self, excess: Fraction) -> float:
        """The bound when nothing beats the incumbent, but for ``excess`` hidden by rounding."""
        assert self.incumbent is not None
        hidden = [] if not excess else [math.nextafter(float(excess), math.inf)]
        return math.fsum([*self.knapsack.values[self.incumbent].tolist(), *hidden])

    def close(self, bound: float) -> None:
        """All was searched, and nothing is above ``bound``."""
        self.bound = max(bound, self.value)
        self.complete = self.within_resolution()

    def within_resolution(self, bound: float | None = None) -> bool:
        """Whether the gap (to ``bound``, if one is given) is no more than rounding."""
        if self.incumbent is None:
            return False
        size = math.fsum(np.abs(self.knapsack.values[self.incumbent]).tolist())
        return (self.bound if bound is None else bound) - self.value <= RESOLUTION * size

    def offer(self, choice: Ints) -> bool:
        """Take a choice that fits if it is better than the incumbent, exactly compared."""
        if not self.knapsack.fits(choice):
            return False
        if self.incumbent is not None:
            here = np.flatnonzero(choice != self.incumbent)
            values = self.knapsack.values
            gain = exact_sum(values[choice[here]]) - exact_sum(values[self.incumbent[here]])
            weight = self.knapsack.weights[0]
            lighter = int(weight[choice[here]].sum()) < int(weight[self.incumbent[here]].sum())
            if gain < 0 or (gain == 0 and not lighter):
                return False
        self.incumbent, self.value = choice, self.total(choice)
        return True
