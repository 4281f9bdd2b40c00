"""One option of each class: the most value within limits, and a bound that certifies it.

A multiple-choice knapsack. HiGHS solves it where there are few options or several limits. Of many
options within one limit, a price on what it counts is bisected: at any price the best options give
an upper bound of the value (Lagrange), and at the lowest price at which they fit they are a choice.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import LinearConstraint, milp
from scipy.sparse import csr_matrix, vstack

from gacprof.core.errors import PlanError

Rows = Sequence[Sequence[float]]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FEW_OPTIONS = 20_000
"""Up to so many HiGHS takes about a second (an 8B model's 224 weights have 14,000)."""
GAP, SECONDS = 1e-6, 60.0
"""HiGHS stops at this relative gap, or with the best choice after so long."""
BISECTIONS = 80
ROUNDING = 1e-9
"""Sums of doubles in another order differ by less than this share of a limit."""
TINY = 1e-300
OUTPUT = Lock()
"""Held while the standard output is turned away: of threads one at a time."""


@contextmanager
def quiet() -> Iterator[None]:
    """HiGHS writes notes of its own to the process's standard output, amid a result's JSON: they go
    to the standard error."""
    with OUTPUT:
        libc, output = ctypes.CDLL(None), os.dup(1)
        os.dup2(2, 1)
        try:
            yield
        finally:
            libc.fflush(None)
            os.dup2(output, 1)
            os.close(output)


@dataclass(frozen=True)
class Solution:
    """``choice`` is the option's index in each class; no choice within the limits has a value
    above ``bound``."""

    choice: tuple[int, ...]
    value: float
    bound: float


class Classes:
    """The values of all options in one array; ``owner`` is the class of each."""

    def __init__(self, values: Rows) -> None:
        lengths = np.array([len(row) for row in values])
        self.starts = np.cumsum(lengths) - lengths
        self.owner = np.repeat(np.arange(len(lengths)), lengths)
        self.values = np.concatenate([np.asarray(row, float) for row in values])

    def best(self, score: Floats, tie: Floats) -> Ints:
        """The option of the highest score in each class; of equal ones that of the least tie."""
        is_best = score == np.maximum.reduceat(score, self.starts)[self.owner]
        ties = np.where(is_best, tie, np.inf)
        places = np.flatnonzero(ties == np.minimum.reduceat(ties, self.starts)[self.owner])
        return places[np.searchsorted(places, self.starts)]


def solve(values: Rows, limits: Sequence[tuple[Rows, float]]) -> Solution:
    """Choose one option of each class: the most Σ value, with Σ takes ≤ max for each limit.

    ``values`` are those of the options by class; each limit is what they take, and the maximum.
    Raises :class:`PlanError` where no choice is within the limits.
    """
    if not values:
        return Solution((), 0.0, 0.0)
    classes = Classes(values)
    takes = np.empty((len(limits), classes.values.size))
    for i, (rows, _) in enumerate(limits):
        takes[i] = np.concatenate([np.asarray(row, float) for row in rows])
    room = np.array([most + ROUNDING * abs(most) for _, most in limits])
    choice = classes.best(classes.values, takes.sum(0))
    bound = float(classes.values[choice].sum())
    if (takes[:, choice].sum(1) > room).any():
        is_large = len(limits) == 1 and classes.values.size > FEW_OPTIONS
        choice, bound = (_by_price if is_large else _by_programme)(classes, takes, room)
    value = float(classes.values[choice].sum())
    return Solution(tuple((choice - classes.starts).tolist()), value, max(bound, value))


def _by_price(classes: Classes, takes: Floats, room: Floats) -> tuple[Ints, float]:
    """The best options at the lowest price at which they fit the one limit, then those of a
    slightly lower price for as many classes as fit; and the least upper bound."""
    (costs,), (most,) = takes, room
    light, heavy = classes.best(-costs, -classes.values), classes.best(classes.values, costs)
    bound = float(classes.values[heavy].sum())
    low, high = 0.0, 0.0
    price = float(np.ptp(classes.values) / max(np.ptp(costs), TINY))
    for _ in range(BISECTIONS):
        score = classes.values - price * costs
        choice = classes.best(score, costs)
        bound = min(bound, float(score[choice].sum() + price * most))
        if costs[choice].sum() <= most:
            light, high = choice, price
        else:
            heavy, low = choice, price
        price = (low + high) / 2 if high else 2 * price
    gains = classes.values[heavy] - classes.values[light]
    more = np.maximum(costs[heavy] - costs[light], TINY)
    left = most - costs[light].sum()
    for i in np.argsort(-gains / more, kind="stable"):
        if gains[i] > 0 and more[i] <= left:
            light[i] = heavy[i]
            left -= more[i]
    return light, bound


def _by_programme(classes: Classes, takes: Floats, room: Floats) -> tuple[Ints, float]:
    """HiGHS's choice and its bound. Raises :class:`PlanError` where there is none."""
    count, options = len(classes.starts), classes.values.size
    one_each = csr_matrix((np.ones(options), (classes.owner, np.arange(options))))
    units = np.maximum(np.abs(room), TINY)
    with quiet():
        result = milp(
            -classes.values / (np.abs(classes.values).max() or 1.0),
            constraints=LinearConstraint(
                vstack([csr_matrix(takes / units[:, None]), one_each]),
                np.concatenate([np.full(len(room), -np.inf), np.ones(count)]),
                np.concatenate([room / units, np.ones(count)]),
            ),
            integrality=np.ones(options),
            bounds=(0, 1),
            options={"mip_rel_gap": GAP, "time_limit": SECONDS},
        )
    if result.x is None:
        raise PlanError("no choice of sizes is within the limits: raise one, or widen the window")
    bound = -result.mip_dual_bound * (np.abs(classes.values).max() or 1.0)
    return classes.best(result.x.round(), -classes.values), float(bound)


MAX_WINDOW = 0.1
"""How far from a dim's size Eq. 4 is followed: about an alignment step, as in the paper's example
(107.3 → 96, 104, 112, 128). Wider windows lost more energy than no plan at all."""


def solve_paper(values: Rows, costs: Rows, budget: int, unit: int) -> tuple[int, ...]:
    """Algorithm 1: one option a class, the most Σ value with Σ ⌊cost / unit⌋ ≤ ⌊budget / unit⌋.

    The paper's unit is 8 · the least number of rows. It is exact only where that divides every
    cost; else the choice may exceed the budget. Raises :class:`PlanError` where nothing fits.
    """
    units = [[int(cost) // unit for cost in row] for row in costs]
    room = budget // unit
    best = np.zeros(room + 1)
    picks = np.zeros((len(units), room + 1), np.int32)
    for row, (weights, row_values) in enumerate(zip(units, values, strict=True)):
        after = np.full(room + 1, -np.inf)
        for option, (weight, value) in enumerate(zip(weights, row_values, strict=True)):
            total = best[: max(0, room + 1 - weight)] + value
            is_better = total > after[weight:]
            after[weight:][is_better] = total[is_better]
            picks[row, weight:][is_better] = option
        best = after
    if np.isinf(best[room]):
        raise PlanError(f"nothing fits a budget of {budget}: raise it")
    choice: list[int] = []
    for row in reversed(range(len(units))):
        choice.append(int(picks[row, room]))
        room -= units[row][choice[-1]]
    return tuple(reversed(choice))
