"""The best choice so far with its bound, what may be spent, and first choices near the dual's."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from gacprof.core import Progress
from gacprof.solver.dual import Dual
from gacprof.solver.knapsack import Knapsack, Subproblem
from gacprof.solver.problem import Floats, Ints

RESOLUTION = 2.0**-47
"""Gaps within this part of Σ|value|, some 7e-15, are the rounding of the values themselves."""

MANY = 8
"""Choices that differ in fewer classes are not mixed: the cores find those mixtures."""

SPARE = (0.0, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
"""Parts of the choices' slack that a mixture leaves unused, until it fits."""


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
            self.progress(value, bound, "bound")


@dataclass
class Incumbent:
    """The state of one search: valid at any moment, so that it may be cut short.

    ``choice`` is the best so far, ``bound`` holds for every choice that fits, ``complete`` says
    that all was searched.
    """

    root: Subproblem
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
            choice = self.choice.copy()
            upto = here[: int(np.flatnonzero(fits)[-1]) + 1]
            choice[upto] = target[upto]
            self.offer(choice)


def mix_dual_choices(incumbent: Incumbent, dual: Dual) -> Ints | None:
    """A choice near both limits where thousands of classes are tied, offered and returned.

    The choices around the dual's minimum span the room left between them: shares are found with
    which their slacks average to zero, and classes are dealt to them in these proportions.
    """
    if len(dual.around) < 3:
        return None
    apart = np.flatnonzero((dual.around[0] != np.stack(dual.around[1:])).any(axis=0))
    if len(apart) < MANY:
        return None
    slacks = np.array([incumbent.knapsack.slack(choice) for choice in dual.around])
    nearest = None
    for spare in SPARE:
        shares = _shares(slacks, spare * np.abs(slacks).max(axis=0))
        if shares is None:
            break
        mixed = _deal(dual.around, apart, shares)
        nearest = mixed if nearest is None else nearest
        if incumbent.offer(mixed):
            break
    return nearest


def _shares(slacks: Floats, target: Floats) -> Floats | None:
    """θ ≥ 0 with Σθ = 1 and Σθ·slacks = target."""
    try:
        shares = np.linalg.solve(np.vstack([slacks.T, np.ones(3)]), np.append(target, 1.0))
    except np.linalg.LinAlgError:
        return None
    return shares if (shares >= -1e-9).all() else None


def _deal(choices: tuple[Ints, ...], apart: Ints, shares: Floats) -> Ints:
    """Class by class in golden-ratio order, which keeps every stretch close to the shares."""
    turn = np.arange(1, len(apart) + 1) * 0.6180339887498949 % 1.0
    of = np.searchsorted(np.cumsum(shares[:-1]), turn, side="right")
    mixed = choices[0].copy()
    mixed[apart] = np.array([choice[apart] for choice in choices])[of, np.arange(len(apart))]
    return mixed
