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

from gacprof.solver.problem import Floats, Ints, Subproblem

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
    knapsack = subproblem.knapsack
    scale = np.where(subproblem.widest > 0, subproblem.widest, 1.0)  # for well conditioned systems
    axes = np.eye(len(scale) + 1)

    def column(choice: Ints) -> _Column:
        return _Column(np.append(np.array(knapsack.slack(choice)) / scale, 1.0), choice)

    def worth(each: _Column) -> float:
        """Value above that of the basis's first choice."""
        base = next(one.choice for one in basis if one.choice is not None)
        return -each.price if each.choice is None else knapsack.gain(each.choice, base)

    basis = [column(subproblem.best(np.zeros(len(scale))))]
    for axis, high, slack in zip(axes, _high_prices(subproblem, scale), basis[0].row, strict=False):
        basis.append(_Column(axis, price=high) if slack < 0 else _Column(-axis))
    pricing = subproblem
    for step in range(STEPS):
        check()
        rows = np.array([each.row for each in basis])
        solved = np.linalg.solve(rows, [worth(each) for each in basis])
        multipliers, height = -solved[:-1], float(solved[-1])
        lowest = int(multipliers.argmin())
        if multipliers[lowest] < -TINY_PRICE * float(np.abs(multipliers).max()):
            entering = _Column(-axes[lowest])
        else:
            multipliers = np.maximum(multipliers, 0)
            if step == FULL_STEPS and len(subproblem.ids) > MANY:
                pricing = subproblem.near_best(multipliers / scale, NEAR)
            entering = column(pricing.best(multipliers / scale))
            gain, priced = worth(entering), float(entering.row[:-1] @ multipliers)
            if gain + priced - height <= TOLERANCE * (abs(gain) + abs(priced)):
                if pricing is subproblem:
                    break
                pricing = subproblem  # the least of some; now of all
                continue
        leaving = _leaving(rows, entering)
        if leaving is None:
            break
        basis[leaving] = entering
    multipliers = np.maximum(multipliers, 0) / scale
    around = tuple(each.choice for each in basis if each.choice is not None)
    return Dual(multipliers, subproblem.best(multipliers), around)


def _high_prices(subproblem: Subproblem, scale: Floats) -> list[float]:
    """Of artificial room in each resource: more than any choice gains by a unit of it."""
    values, starts = subproblem.values, subproblem.starts
    spread = np.maximum.reduceat(values, starts) - np.minimum.reduceat(values, starts)
    steps = [float(w[w > 0].min(initial=np.inf)) for w in subproblem.weights]
    high = 2 * max(float(spread.sum()), 1e-300) * scale / np.minimum(steps, scale)
    return high.tolist()


def _leaving(rows: Floats, entering: _Column) -> int | None:
    """Which column of the basis the entering one drives to zero first; None if there is none."""
    whole = np.eye(len(rows))[-1]
    shares, change = np.linalg.solve(rows.T, np.stack([whole, entering.row], axis=1)).T
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(change > 1e-11, np.maximum(shares, 0) / change, np.inf)
    leaving = int(ratio.argmin())
    return leaving if np.isfinite(ratio[leaving]) else None


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
