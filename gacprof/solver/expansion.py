"""The proof for one subproblem: cores of rising size, and what the finished ones prove.

Whatever loses at most g against the dual bound is met by searching the core of the candidates
that lose at most g, so an incumbent that loses no more than g is optimal, and proved so.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from gacprof.solver.core import STEP_WORK, Core
from gacprof.solver.dual import Dual, active_items, minimise
from gacprof.solver.incumbent import Caps, Incumbent
from gacprof.solver.knapsack import Subproblem

CANDIDATES = 1 << 17
"""How many candidates are sorted by loss at first; more only if these do not suffice."""

RESOLVE_WORK = 8_000_000
"""After so much work on a gap within the resolution, the rest is taken to be rounding."""

FIRST_CORE = 48
FIRST_QUOTA = 1 << 17
MOST_QUOTA = 1 << 24
"""A core of more states takes more than a gigabyte: its subproblem is split instead."""

ITEM_WORK = 64
"""What it costs to lay out a core, in states per candidate."""

GROW = (3.0, 1.5)
"""Finished cores grow by so much, for one resource and for two, where the states explode."""

CAUTIOUS = 1.2
"""The same for a core that was given up, counted from the last finished one."""


class CoreExpansion:
    """``bound`` holds for every choice of this subproblem; ``exhausted``: none beats the incumbent;
    ``stuck``: no core that could prove more may grow as large as it would have to;
    ``spent`` and ``allowance``: work done, and work allowed before a split is tried."""

    def __init__(
        self,
        incumbent: Incumbent,
        caps: Caps,
        subproblem: Subproblem,
        *,
        bound: float = math.inf,
        first: Callable[[Dual], None] | None = None,
    ) -> None:
        """``bound`` is one already known; ``first`` finds first choices from the dual."""
        self.incumbent, self.caps, self.subproblem = incumbent, caps, subproblem
        self.knapsack, self.bound = incumbent.knapsack, bound
        dual = minimise(subproblem, caps.check)
        incumbent.offer(dual.reference)
        if first is not None:
            first(dual)
        self.multipliers, self.around = dual.multipliers, (dual.reference, *dual.around)
        self.reference = dual.reference
        value = self.knapsack.value(self.reference)
        priced = float(self.multipliers @ self.knapsack.slack(self.reference))
        self.upper, self.magnitude = value + priced, abs(value) + abs(priced)
        self.quota, self.count, self.finished, self.spent = FIRST_QUOTA, FIRST_CORE, 0, 0
        self.allowance = math.inf
        self.exhausted = self.stuck = False
        self._find_active(CANDIDATES)
        self._raise_least(0.0)

    @property
    def most(self) -> float:
        """What the incumbent loses."""
        assert self.incumbent.choice is not None
        return self.knapsack.loss(self.multipliers, self.incumbent.choice, self.reference)

    @property
    def covered(self) -> bool:
        """Whether the active items are all that a better choice can have."""
        return self.active.reach >= self.most + self.active.slop

    def _find_active(self, count: int) -> None:
        self.active = active_items(
            self.subproblem, self.multipliers, self.reference, self.most, count
        )

    def _raise_least(self, least: float) -> None:
        """Lower the bound: no choice that was not met loses less than ``least``."""
        rounding = self.active.slop + 2.0**-51 * self.magnitude
        self.bound = min(self.bound, self.upper - least + rounding)
        if self.bound < self.incumbent.value:
            self.bound, self.exhausted = self.incumbent.value, True

    def _close(self, excess: Fraction) -> None:
        """Nothing here beats the incumbent, but for ``excess`` hidden by rounding."""
        self.bound = min(self.bound, self.incumbent.bound_with(excess))
        self.exhausted = True

    def proved(self) -> bool:
        """Whether nothing in this subproblem is better than the incumbent."""
        if not self.exhausted and self.spent >= RESOLVE_WORK:
            self.exhausted = self.incumbent.within_resolution(self.bound)
            if self.exhausted:
                self.incumbent.note("proved to the rounding of the values: see the gap")
        return self.exhausted

    def step(self) -> bool:
        """Search one core; false if the caps do not allow it."""
        most, active = self.most, self.active
        inside = int(np.searchsorted(active.loss, most + active.slop, side="right"))
        count = min(self.count, inside)
        whole = self.covered and count == inside
        if whole and not count:
            self._close(Fraction(0))
            return True
        beyond = active.loss[count] if count < len(active.loss) else active.reach
        threshold = most if whole else float(beyond)
        ties = threshold <= 2 * active.slop  # nothing to prove here, but much to find
        left = self.caps.work - self.caps.spent
        if left <= 0 or count * ITEM_WORK > left:
            return False
        core = Core(self.knapsack, active, count, most if ties else threshold)
        try:
            finished = core.search(min(self.quota, left), self.caps.check)
        finally:
            work = core.work + STEP_WORK + ITEM_WORK * count
            self.spent, self.caps.spent = self.spent + work, self.caps.spent + work
            if core.best is not None:
                self.incumbent.offer(core.choice())
        if finished:
            self._learn(core, count, threshold, whole)
        else:
            self._retreat()
        return True

    def _learn(self, core: Core, count: int, threshold: float, whole: bool) -> None:
        """A finished core met every choice that loses less than ``threshold``."""
        assert self.incumbent.choice is not None
        least = threshold - self.active.slop - core.margin
        if whole or self.most < least:
            self._close(core.excess(self.incumbent.choice))
            return
        self._raise_least(least)
        grown = int(GROW[len(self.multipliers) - 1] * count)
        self.finished, self.count = count, max(count + 16, grown)
        if count == len(self.active.items):
            self._find_active(8 * count)

    def _retreat(self) -> None:
        """Too much work: allow more, for a core little larger than the last finished one."""
        self.stuck = self.quota >= MOST_QUOTA
        self.quota = min(4 * self.quota, MOST_QUOTA)
        self.count = max(16, int(CAUTIOUS * self.finished) + 1)
