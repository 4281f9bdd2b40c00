"""The proof for one part of a knapsack: cores of rising size, and what the finished ones prove.

Whatever loses at most g against the dual bound is met by searching the core of the candidates
that lose at most g, so an incumbent that loses no more than g is optimal, and proved so.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from gacprof.solver.core import STEP_WORK, Core
from gacprof.solver.dual import Dual
from gacprof.solver.integers import scaled
from gacprof.solver.losses import loss_of, losses
from gacprof.solver.problem import Ints
from gacprof.solver.search import Caps, Search

CANDIDATES = 1 << 17
"""How many candidates are sorted by loss at first; more only if these do not suffice."""

RESOLVE_WORK = 8_000_000
"""After so much work on a gap within the resolution, the rest is taken to be rounding."""

FIRST_CORE = 48
FIRST_QUOTA = 1 << 17
MOST_QUOTA = 1 << 24
"""A core of more states takes more than a gigabyte: its part is split rather than searched."""

ITEM_WORK = 64
"""What it costs to lay out a core, in states per candidate."""

GROW = (3.0, 1.5)
FINEST = (1.25, 1.2)
"""Cores grow by no less than this, for one resource and for two, where the states explode."""


class Climb:
    """``bound`` holds for every choice of this part; ``exhausted``: none beats the incumbent;
    ``stuck``: no core that could tell more may grow as large as it would have to."""

    def __init__(
        self,
        search: Search,
        caps: Caps,
        dual: Dual,
        reference: Ints,
        ids: Ints | None = None,
        bound: float = math.inf,
    ) -> None:
        """``ids``: the only candidates there are, if not all; ``bound`` is one already known."""
        self.search, self.caps, self.dual, self.ids, self.bound = search, caps, dual, ids, bound
        self.multipliers, self.reference = dual.multipliers, reference
        knapsack = search.knapsack
        base = math.fsum(knapsack.values[reference].tolist())
        priced = float(self.multipliers @ knapsack.slack(reference))
        self.upper, self.magnitude = base + priced, abs(base) + abs(priced)
        self.quota, self.count, self.finished, self.spent = FIRST_QUOTA, FIRST_CORE, 0, 0
        self.allowance, self.attempts = math.inf, 0
        self.exhausted = self.retreated = self.stuck = False
        self.care = 0
        self._common: float | None = None
        self._spread(CANDIDATES)

    def _spread(self, candidates: int) -> None:
        self.play = losses(
            self.search.knapsack,
            self.multipliers,
            self.reference,
            self.most,
            candidates,
            self.ids,
        )
        self._common = None
        self._lower(self._wasted())

    @property
    def most(self) -> float:
        """What the incumbent loses."""
        assert self.search.incumbent is not None
        return loss_of(
            self.search.knapsack, self.multipliers, self.reference, self.search.incumbent
        )

    def _wasted(self) -> float:
        """The price of room that a common measure of all moves leaves unused."""
        play, weight = self.play, self.search.knapsack.weights[0]
        if play.reach < self.most + play.slop or weight.dtype != np.int64:
            return 0.0
        base = self.reference[self.search.knapsack.owner[play.items]]
        measure = int(np.gcd.reduce(weight[play.items] - weight[base])) if len(base) else 0
        slack = int(self.search.knapsack.room[0]) - int(weight[self.reference].sum())
        return float(self.multipliers[0]) * (slack % measure if measure else max(slack, 0))

    def _lower(self, least: float) -> None:
        """Take in that no choice unmet loses less than ``least``."""
        rounding = self.play.slop + 2.0**-51 * self.magnitude
        self.bound = min(self.bound, self.upper - least + rounding)
        if self.bound < self.search.value:
            self.bound, self.exhausted = self.search.value, True

    def proved(self) -> bool:
        """Whether nothing in this part is better than the incumbent."""
        if not self.exhausted and self.retreated:
            close = self.bound - self.search.value < self._step()
            if close:
                self._close(Fraction(0))
            elif self.spent >= RESOLVE_WORK and self.search.within_resolution(self.bound):
                close = True
                self.search.note("proved to the rounding of the values: see the gap")
            self.exhausted = close
        return self.exhausted

    def _close(self, excess: Fraction, *, final: bool = True) -> bool:
        """Nothing here is better but for ``excess``. False, and nothing is settled, if that shows
        in a double, unless it is ``final``."""
        bound = self.search.nothing_better(excess)
        if bound > self.search.value and not final:
            return False
        self.bound, self.exhausted = min(self.bound, bound), True
        return True

    def _step(self) -> float:
        """The least by which a choice in play can better the incumbent, if it does."""
        play, values, incumbent = self.play, self.search.knapsack.values, self.search.incumbent
        elsewhere = self.ids is not None and not np.isin(np.asarray(incumbent), self.ids).all()
        if elsewhere or play.reach < self.most + play.slop:
            return 0.0
        if self._common is None:
            base = self.reference[self.search.knapsack.owner[play.items]]
            gains = scaled(values[play.items], values[base], up=True)
            self._common = gains.step
        return self._common

    def step(self) -> bool:
        """Search one core; false if the caps do not allow it."""
        most = self.most
        covered = self.play.reach >= most + self.play.slop
        inside = int(np.searchsorted(self.play.loss, most + self.play.slop, side="right"))
        count = min(self.count, inside)
        whole = covered and count == inside
        beyond = self.play.loss[count] if count < len(self.play.loss) else self.play.reach
        if whole and not count:
            return self._close(Fraction(0))
        threshold = most if whole else float(beyond)
        ties = threshold <= 2 * self.play.slop  # nothing to prove here, but much to find
        left = self.caps.work - self.caps.spent
        if left <= 0 or count * ITEM_WORK > left:
            if not covered:
                self._spread(len(self.search.knapsack.values))
            self.retreated = True
            return self.proved()
        core = Core(self.search.knapsack, self.play, count, most if ties else threshold, self.care)
        try:
            finished = core.run(min(self.quota, left), self.caps.check)
        finally:
            work = core.work + STEP_WORK + ITEM_WORK * count
            self.spent, self.caps.spent = self.spent + work, self.caps.spent + work
            if core.found is not None:
                self.search.offer(core.choice())
        if not core.exact and core.loss < self.most - core.margin:
            return self._more_careful()  # what was found fits only by rounding
        if finished:
            self._learn(core, count, threshold, whole)
        else:
            self._retreat(count)
        return True

    def _more_careful(self) -> bool:
        """Search again with less rounding, if that is possible."""
        self.care += 1
        if self.care > 2:
            self.search.note("a core too large for exact sums: rounding is in the gap")
        return self.care <= 2

    def _learn(self, core: Core, count: int, threshold: float, whole: bool) -> None:
        """A finished core met every choice that loses less than ``threshold``."""
        assert self.search.incumbent is not None
        least = threshold - self.play.slop - core.margin
        if whole or self.most < least:
            excess = core.excess(self.search.incumbent)
            self.care += not self._close(excess, final=self.care > 1)
            return
        self._lower(least)
        grown = int(GROW[len(self.multipliers) - 1] * count)
        self.finished, self.count = count, max(count + 16, grown)
        if count == len(self.play.items):
            self._spread(8 * count)

    def _retreat(self, count: int) -> None:
        """Too much work: try a smaller core, or if that would gain little, allow more."""
        self.retreated = True
        finest = FINEST[len(self.multipliers) - 1]
        self.count = int(math.sqrt(max(self.finished, 1) * count))
        if self.count <= finest * self.finished or self.count < 16:
            self.stuck = self.quota >= MOST_QUOTA
            self.quota = min(4 * self.quota, MOST_QUOTA)
            self.count = max(16, int(finest * self.finished) + 1)
