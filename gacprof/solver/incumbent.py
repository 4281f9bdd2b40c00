"""The best choice so far with its bound, and what may be spent on a better one."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from gacprof.core import Progress
from gacprof.solver.knapsack import Knapsack, Subproblem
from gacprof.solver.problem import Ints

RESOLUTION = 2.0**-47
"""Gaps within this part of Σ|value|, some 7e-15, are the rounding of the values themselves."""


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


@dataclass
class Incumbent:
    """The state of one search: valid at any moment, so that it may be cut short.

    ``choice`` is the best so far, ``bound`` holds for every choice that fits, ``complete`` says
    that all was searched.
    """

    root: Subproblem
    caps: Caps
    choice: Ints | None = None
    value: float = -math.inf
    bound: float = math.inf
    complete: bool = False
    notes: list[str] = field(default_factory=list)

    @property
    def knapsack(self) -> Knapsack:
        return self.root.knapsack

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def report(self) -> None:
        if self.caps.progress is not None:
            self.caps.progress(self.value, self.bound, "bound")

    def settle_for_less(self) -> bool:
        """Cut short before a first incumbent: take the least of each class, should it fit."""
        for weight in self.root.weights:
            if self.choice is None:
                self.offer(self.root.greatest(-weight))
        if not math.isfinite(self.bound):
            self.bound = self.knapsack.value(self.root.greatest(self.root.values))
        return self.choice is not None

    def bound_with(self, excess: Fraction) -> float:
        """The bound when nothing beats the incumbent, but for ``excess`` hidden by rounding."""
        hidden = [math.nextafter(float(excess), math.inf)] if excess else []
        return math.fsum([*self.knapsack.values[self.choice].tolist(), *hidden])

    def close(self, bound: float) -> None:
        """All was searched, and nothing is above ``bound``."""
        self.bound = max(bound, self.value)
        self.complete = self.within_resolution(self.bound)

    def within_resolution(self, bound: float) -> bool:
        """Whether the gap to ``bound`` is no more than rounding."""
        size = math.fsum(np.abs(self.knapsack.values[self.choice]).tolist())
        return bound - self.value <= RESOLUTION * size

    def offer(self, choice: Ints) -> bool:
        """Take a choice that fits if it is better than the incumbent, exactly compared."""
        if min(self.knapsack.slack(choice)) < 0:
            return False
        if self.choice is not None:
            gain = self.knapsack.exact_gain(choice, self.choice)
            lighter = self.knapsack.slack(choice)[0] > self.knapsack.slack(self.choice)[0]
            if gain < 0 or (gain == 0 and not lighter):
                return False
        self.choice, self.value = choice, self.knapsack.value(choice)
        return True

    def walk(self, target: Ints) -> None:
        """Turn the incumbent into ``target`` class by class, as far as it fits."""
        assert self.choice is not None
        here = np.flatnonzero(target != self.choice)
        fits = np.ones(len(here), dtype=bool)
        slack = self.knapsack.slack(self.choice)
        for weight, room in zip(self.knapsack.weights, slack, strict=True):
            fits &= np.cumsum(weight[target[here]] - weight[self.choice[here]]) <= room
        if fits.any():
            upto = here[: int(np.flatnonzero(fits)[-1]) + 1]
            choice = self.choice.copy()
            choice[upto] = target[upto]
            self.offer(choice)
