"""The Lagrangian dual: what a unit of each resource is worth, and what each candidate loses.

For multipliers y ≥ 0 every choice x that fits has

    Σ value(x) ≤ f(y) = Σᵢ maxⱼ (valueᵢⱼ − y·weightᵢⱼ) + y·room.

The least f is found by column generation (Dantzig and Wolfe 1960). The master problem mixes
choices so that their slacks average to no less than zero. With r resources its basis is r + 1
columns, so each step solves a system of two or three equations: its prices are y, and the best
choice at y is the column that enters. When no better one is left, f is least at y, and the
basis holds the choices around the optimum with their shares.

Any y ≥ 0 gives a valid bound. A candidate's reduced cost, or *loss*, against a reference choice
that is best at y is ρ = y·Δweight − Δvalue ≥ 0 (Δ: against the reference's candidate of the same
class), and a choice's value is f(y) − (Σρ + y·slack).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gacprof.solver.knapsack import Subproblem
from gacprof.solver.problem import Floats, Ints

STEPS = 200
"""Far more than are needed: a few dozen for two resources. Past it the last y is used."""

TOLERANCE, TINY_PRICE = 1e-14, 1e-12
"""Relative: what an entering choice must gain, and how far below zero rounding takes a price."""

FULL_STEPS, NEAR, MANY = 6, 0.05, 1 << 17
"""After so many steps only candidates near the best of their class enter, those that lose less than
this share of the mean, until none does; then all again. Worth it where there are so many."""

UNIT, TINY = 2.0**-53, 2.0**-1000
"""The rounding of one operation, relative; and an absolute one: values are scaled well above it."""


@dataclass(frozen=True)
class Dual:
    """Multipliers near the least f, a best choice there, and the choices of the last basis."""

    multipliers: Floats
    reference: Ints
    around: tuple[Ints, ...]


class _Column(NamedTuple):
    """A column of the master: its slack per resource and its share of one choice; a choice, or
    (None) unused room, or an artificial excess of room that costs ``price``."""

    row: Floats
    choice: Ints | None = None
    price: float = 0.0


def minimise(subproblem: Subproblem, check: Callable[[], None]) -> Dual:
    """Multipliers near the least f. ``check`` is called before each step and may raise."""
    master = _Master(subproblem)
    pricing = subproblem
    for step in range(STEPS):
        check()
        multipliers, height = master.prices()
        lowest = int(multipliers.argmin())
        if multipliers[lowest] < -TINY_PRICE * float(np.abs(multipliers).max()):
            entering = master.unused(lowest)
        else:
            multipliers = np.maximum(multipliers, 0)
            if step == FULL_STEPS and len(subproblem.ids) > MANY:
                pricing = subproblem.near_best(multipliers / master.scale, NEAR)
            entering = master.choice(pricing.best(multipliers / master.scale))
            gain = master.worth(entering)
            priced = float(entering.row[:-1] @ multipliers)
            if gain + priced - height <= TOLERANCE * (abs(gain) + abs(priced)):
                if pricing is subproblem:
                    break
                pricing = subproblem  # the least of some; now of all
                continue
        if not master.enter(entering):
            break
    multipliers = np.maximum(multipliers, 0) / master.scale
    return Dual(multipliers, subproblem.best(multipliers), tuple(master.choices()))


class _Master:
    """The basis. Weights are divided by ``scale``, so that the systems are well conditioned."""

    def __init__(self, subproblem: Subproblem) -> None:
        self.knapsack = subproblem.knapsack
        self.scale = np.where(subproblem.widest > 0, subproblem.widest, 1.0)
        self.count = len(self.scale)
        first = self.choice(subproblem.best(np.zeros(self.count)))
        values, starts = subproblem.values, subproblem.starts
        spread = np.maximum.reduceat(values, starts) - np.minimum.reduceat(values, starts)
        steps = [float(w[w > 0].min(initial=np.inf)) for w in subproblem.weights]
        high = 2 * max(float(spread.sum()), 1e-300) * self.scale / np.minimum(steps, self.scale)
        self.basis = [first]
        for k in range(self.count):
            missing = _Column(self._axis(k), price=float(high[k]))
            self.basis.append(missing if first.row[k] < 0 else self.unused(k))

    def _axis(self, k: int) -> Floats:
        return np.eye(self.count + 1)[k]

    def unused(self, k: int) -> _Column:
        return _Column(-self._axis(k))

    def choice(self, choice: Ints) -> _Column:
        return _Column(np.append(np.array(self.knapsack.slack(choice)) / self.scale, 1.0), choice)

    def choices(self) -> list[Ints]:
        return [column.choice for column in self.basis if column.choice is not None]

    def worth(self, column: _Column) -> float:
        """Value above that of the basis's first choice."""
        if column.choice is None:
            return -column.price
        return self.knapsack.gain(column.choice, self.choices()[0])

    def prices(self) -> tuple[Floats, float]:
        """The multipliers, and the height of f's lower model there."""
        worth = [self.worth(column) for column in self.basis]
        solved = np.linalg.solve(np.array([column.row for column in self.basis]), worth)
        return -solved[:-1], float(solved[-1])

    def enter(self, column: _Column) -> bool:
        """Exchange it for the column that it drives to zero first; false if there is none."""
        rows = np.array([column.row for column in self.basis]).T
        last = self._axis(self.count)
        shares, change = np.linalg.solve(rows, np.stack([last, column.row], axis=1)).T
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(change > 1e-11, np.maximum(shares, 0) / change, np.inf)
        leaving = int(ratio.argmin())
        if not np.isfinite(ratio[leaving]):
            return False
        self.basis[leaving] = column
        return True


@dataclass(frozen=True)
class Active:
    """Candidates other than the reference's, least loss first: all with a loss up to ``reach``.

    ``error`` bounds the rounding of one loss. ``slop`` bounds that of a choice: whatever has a
    computed loss l, no choice with it loses less than l − slop.
    """

    multipliers: Floats
    reference: Ints
    items: Ints
    loss: Floats
    reach: float
    error: float
    slop: float


def active_items(
    subproblem: Subproblem, multipliers: Floats, reference: Ints, most: float, count: int
) -> Active:
    """Candidates with a loss up to ``most``, or some ``count`` least ones if those are more."""
    ids, owner = subproblem.ids, subproblem.owner
    priced = subproblem.priced(multipliers)
    at = np.searchsorted(ids, reference)
    largest = np.abs(subproblem.values).max() + multipliers @ subproblem.widest
    error = (6 + 2 * len(multipliers)) * UNIT * float(largest) + TINY  # so many roundings at most
    loss = priced[at][owner] - priced
    loss[at] = np.inf
    # Only a loss of about zero may truly be below it, once in each class.
    tied = len(np.unique(owner[np.flatnonzero(loss <= error)]))
    slack = np.abs(subproblem.knapsack.slack(reference))
    slop = error * (tied + 1) + 8 * UNIT * float(multipliers @ slack)
    reach = most + 4 * slop
    active = np.flatnonzero(loss <= reach)
    if len(active) > count:
        reach = float(np.partition(loss[active], count)[count])
        active = active[loss[active] <= reach]
    loss = loss[active]
    # Of those that lose nothing, any few shall come from all over the classes: golden-ratio order.
    rank = np.where(loss <= slop, ids[active] * 0.6180339887498949 % 1.0 - 2.0, loss)
    order = np.argsort(rank, kind="stable")
    items, loss = ids[active][order], np.maximum(loss[order], 0.0)
    return Active(multipliers, reference, items, loss, reach, error, slop)
