"""Several resources: linear and integer programming by HiGHS (``scipy.optimize``), its answer
checked.

The linear relaxation gives a bound and a price of each resource. As with one resource, what a
candidate loses at these prices bounds what any choice with it is worth, so that only candidates
that lose less than the incumbent can better it: first a few of these are given to HiGHS, for a good
incumbent, then all. What comes back is checked: HiGHS keeps limits to some 1e-9 of the room.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from gacprof.core.errors import SolverError
from gacprof.solver.one import Caps, solve_one
from gacprof.solver.problem import Classes, Floats, InfeasibleBudget, Ints, Resource, Solution

SECONDS = 5.0
"""Given where no time limit is asked for: most of it goes into the proof."""
GAP = 1e-9
"""The relative gap from which a choice counts as proved."""
FIRST = 200
"""Candidates beyond one a class that are given to HiGHS first."""
COMBINATIONS = 4096
"""Roundings of the relaxation that are tried."""
KEEP = (0.0, 2e-9, 1e-7, 1e-5)
"""Parts of the room that are kept back where a choice exceeded it by HiGHS's tolerance."""
TIME = "the time limit was reached: the gap is what is left unproved"


def solve_several(classes: Classes, caps: Caps) -> Solution:
    """The best choice within all resources that HiGHS finds in the time, and its gap.

    Raises :class:`InfeasibleBudget`, or :class:`SolverError` where the time is over before any
    choice was found.
    """
    deadline = caps.deadline if caps.deadline is not None else time.monotonic() + SECONDS
    for place, each in enumerate(classes.resources):
        if each.most < _floor(classes, each):
            raise _refusal(classes, place, deadline)
    search, interrupted = _Search(classes, deadline), False
    try:
        search.run()
    except KeyboardInterrupt:
        interrupted = True
    if search.items is None and not interrupted and search.infeasible:
        raise _refusal(classes, 0, deadline)
    if search.items is None:
        raise SolverError("the search ended before any choice that fits was found: allow more time")
    value = classes.value(search.items)
    bound = max(search.bound, value)
    proved = bound - value <= GAP * max(abs(value), abs(bound), sys.float_info.min)
    note = "interrupted: the gap is what is left unproved" if interrupted else TIME
    notes = () if proved else (note,)
    return classes.solution(search.items, bound, proved, notes=notes, interrupted=interrupted)


def _floor(classes: Classes, resource: Resource) -> float:
    least = np.minimum.reduceat(resource.takes, classes.starts).tolist()
    return sum(least) if resource.whole else math.fsum(least)


@dataclass
class _Search:
    """``items`` is the best choice so far, ``bound`` holds for all; values are scaled to 1."""

    classes: Classes
    deadline: float

    def __post_init__(self) -> None:
        classes = self.classes
        self.items: Ints | None = None
        self.bound, self.infeasible = math.inf, False
        # Counted from the first of each class, so that no digits are lost on what all have.
        base = classes.values[classes.starts]
        self.offset = math.fsum(base.tolist())
        self.values = classes.values - np.repeat(base, classes.lengths)
        self.scale = float(np.abs(self.values).max()) or 1.0
        rows, self.fits = [], np.ones(len(self.values), dtype=bool)
        for each in classes.resources:
            above = (each.takes - classes.least(each.takes)).astype(np.float64)
            room = float(each.most - _floor(classes, each))
            self.fits &= above <= room
            if 0 < room < math.inf:
                rows.append(above / room)
        self.rows = np.array(rows).reshape(len(rows), len(self.values))

    def run(self) -> None:
        loss, best, relaxed = self._relaxed()
        if relaxed is None:
            return
        self.bound = best * self.scale + self.offset
        self._round(relaxed, loss)
        self.top = self._first(loss == 0)
        count = min(len(self.classes.lengths) + FIRST, int(self.fits.sum()))
        first = float(np.sort(loss[self.fits])[count - 1])
        if self.items is None or first < self._lost():
            self._integer(loss <= first, 0.5)
        if first >= self._lost() or not self._proved():  # all that could be better
            self._integer(loss <= self._lost(), 1.0, whole=True)

    def _proved(self) -> bool:
        if self.items is None:
            return False
        value = self.classes.value(self.items)
        return self.bound - value <= GAP * max(abs(value), abs(self.bound))

    def _lost(self) -> float:
        """What the incumbent lacks of the bound, scaled, and rounding."""
        if self.items is None:
            return math.inf
        return (self.bound - self.classes.value(self.items)) / self.scale + 1e-12

    def _offer(self, items: Ints) -> bool:
        if not self.classes.fits(items):
            return False
        if self.items is None or self.classes.value(items) > self.classes.value(self.items):
            self.items = items
        return True

    def _constraints(self, keep: Ints) -> Any:
        from scipy.sparse import csr_array

        owner = self.classes.owner[keep]
        shape = len(self.classes.lengths), len(keep)
        return csr_array((np.ones(len(keep)), (owner, np.arange(len(keep)))), shape=shape)

    def _relaxed(self) -> tuple[Floats, float, Floats | None]:
        """The losses at the relaxation's prices, its value, and its shares of all candidates."""
        from scipy.optimize import linprog

        keep, count = np.flatnonzero(self.fits), len(self.classes.lengths)
        self.infeasible = len(np.unique(self.classes.owner[keep])) < count
        if self.infeasible:
            return np.zeros(0), 0.0, None
        found = linprog(
            -self.values[keep] / self.scale,
            A_ub=self.rows[:, keep] if len(self.rows) else None,
            b_ub=np.ones(len(self.rows)) if len(self.rows) else None,
            A_eq=self._constraints(keep),
            b_eq=np.ones(count),
            bounds=(0, 1),
            method="highs",
        )
        if found.x is None:
            self.infeasible = found.status == 2
            return np.zeros(0), 0.0, None
        prices = np.maximum(-found.ineqlin.marginals, 0) if len(self.rows) else np.zeros(0)
        priced = np.where(self.fits, self.values / self.scale - prices @ self.rows, -np.inf)
        top = np.maximum.reduceat(priced, self.classes.starts)
        shares = np.zeros(len(self.values))
        shares[keep] = found.x
        bound = float(top.sum() + prices.sum())  # at any prices it is one: no tolerance is in it
        return np.repeat(top, self.classes.lengths) - priced, bound, shares

    def _chosen(self, shares: Floats) -> Ints:
        top = np.maximum.reduceat(shares, self.classes.starts)
        return self._first(shares == np.repeat(top, self.classes.lengths))

    def _first(self, marked: Any) -> Ints:
        """The first marked candidate of each class."""
        at = np.flatnonzero(marked)
        return at[np.searchsorted(self.classes.owner[at], np.arange(len(self.classes.lengths)))]

    def _round(self, shares: Floats, loss: Floats) -> None:
        """A first incumbent: the classes that the relaxation splits, rounded in many ways."""
        items = self._chosen(shares)
        split = np.unique(self.classes.owner[(shares > 1e-9) & (shares < 1 - 1e-9)])
        each = max(2, int(COMBINATIONS ** (1 / max(len(split), 1))))
        if 2.0 ** len(split) > COMBINATIONS:
            return
        ways = []
        for k in split.tolist():
            start = int(self.classes.starts[k])
            order = np.argsort(loss[start : start + int(self.classes.lengths[k])], kind="stable")
            ways.append((start + order[:each]).tolist())
        for way in product(*ways):
            items[split] = way
            self._offer(items.copy())

    def _integer(self, keep: Any, share: float, *, whole: bool = False) -> None:
        """HiGHS on some candidates, for a share of the time that is left; where they are the
        ``whole`` of what can better the incumbent, its bound is one for all."""
        from scipy.optimize import Bounds, LinearConstraint, milp

        places = np.flatnonzero(keep & self.fits)
        each = self._constraints(places)
        if (each.sum(axis=1) == 0).any():
            return
        # Against the best at the prices: what could never be chosen is no measure of small gaps.
        base = self.values[self.top]
        worth = self.values[places] - base[self.classes.owner[places]]
        scale = float(np.abs(worth).max()) or 1.0
        for back in KEEP:
            rows = [LinearConstraint(each, 1, 1)]
            if len(self.rows):
                rows.append(LinearConstraint(self.rows[:, places], ub=1.0 - back))
            left = share * (self.deadline - time.monotonic())
            if left <= 0:
                return
            with _quiet():
                found = milp(
                    -worth / scale,
                    constraints=rows,
                    integrality=np.ones(len(places)),
                    bounds=Bounds(0, 1),
                    options={"mip_rel_gap": GAP / 4, "time_limit": left},
                )
            if whole and not back and found.mip_dual_bound is not None:
                reached = -math.inf if self.items is None else self.classes.value(self.items)
                above = math.fsum(base.tolist()) + self.offset
                bound = above - float(found.mip_dual_bound) * scale
                self.bound = min(self.bound, max(bound, reached))
            if found.x is None:
                self.infeasible = whole and found.status == 2 and self.items is None
                return
            shares = np.zeros(len(self.values))
            shares[places] = found.x
            if self._offer(self._chosen(shares)):
                return


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what HiGHS prints to the process's standard output, whatever it was told."""
    sys.stdout.flush()
    try:
        kept = os.dup(1)
    except OSError:  # there is none
        yield
        return
    try:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _refusal(classes: Classes, place: int, deadline: float) -> SolverError:
    """That one limit cannot be kept, and the least of it within the others that would do; where
    these cannot be kept together either, what would do of them."""
    short = classes.resources[place]
    others = (*classes.resources[:place], *classes.resources[place + 1 :])
    rest = Classes(-short.takes.astype(np.float64), others, classes.lengths)
    try:
        caps = Caps(10**8, deadline)
        found = (solve_one if len(others) == 1 else solve_several)(rest, caps)
    except InfeasibleBudget as error:
        own = error.resource + (error.resource >= place)
        return InfeasibleBudget(str(error), own, error.nearest, enough=False)
    except SolverError as error:
        return error
    least = short.of(np.array(found.choice) + classes.starts)
    if least <= short.most:  # HiGHS keeps limits to a tolerance, and found none within them
        return SolverError(
            f"only choices at the very edge of the limits keep them: loosen that of {short.name} a "
            "little, or allow more time"
        )
    return InfeasibleBudget(
        f"the limit of {short.name} is {short.most}: within the other limits the least is {least}",
        place, least,
    )  # fmt: skip
