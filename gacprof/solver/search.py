"""One knapsack, searched until its best choice is proved or the caps are spent.

The dual gives multipliers and choices around the optimum; the best of those that fit is the
first incumbent. Then cores are searched for rising loss thresholds g: whatever loses at most g
is met, so an incumbent that loses no more than g is optimal, and proved so.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from gacprof.solver.blend import blend
from gacprof.solver.core import STEP_WORK, Core
from gacprof.solver.dual import minimise
from gacprof.solver.integers import exact_sum, scaled
from gacprof.solver.losses import loss_of, losses, tied_to
from gacprof.solver.problem import Floats, Ints, Knapsack

CANDIDATES = 1 << 17
"""How many candidates are sorted by loss at first; more only if these do not suffice."""

RESOLUTION = 2.0**-47
"""Gaps within this part of Σ|value|, some 7e-15, are the rounding of the values themselves."""

RESOLVE_WORK = 8_000_000
"""After so much work on a gap within the resolution, the rest is taken to be rounding."""

FIRST_CORE = 48
FIRST_QUOTA = 1 << 17
ITEM_WORK = 64
"""What it costs to lay out a core, in states per candidate."""

GROW = (3.0, 1.5)
FINEST = (1.25, 1.2)
"""Cores grow by no less than this, for one resource and for two, where the states explode."""

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

    def lower_bound(self, bound: float) -> None:
        self.bound = max(min(self.bound, bound), self.value)

    def close(self, excess: Fraction, *, final: bool = True) -> bool:
        """Nothing is better than the incumbent, but for ``excess`` hidden by rounding. False, and
        nothing is settled, if that shows in a double, unless it is ``final``."""
        assert self.incumbent is not None
        hidden = [] if not excess else [math.nextafter(float(excess), math.inf)]
        bound = math.fsum([*self.knapsack.values[self.incumbent].tolist(), *hidden])
        if bound > self.value and not final:
            return False
        self.bound = bound
        self.complete = self.within_resolution()
        return True

    def within_resolution(self) -> bool:
        if self.incumbent is None:
            return False
        size = math.fsum(np.abs(self.knapsack.values[self.incumbent]).tolist())
        return self.bound - self.value <= RESOLUTION * size

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


def optimise(search: Search, caps: Caps) -> None:
    """Fill ``search``; on return it is complete, or the caps are spent."""
    knapsack = search.knapsack
    best = knapsack.most_valued()
    search.bound = math.fsum(knapsack.values[best].tolist())
    if search.offer(best):
        search.close(Fraction(0))
        return
    dual = minimise(knapsack, caps.check)
    choices = (*dual.around, dual.reference)
    for choice in choices:
        search.offer(choice)
    if search.incumbent is None and not search.settle_for_less():
        assert search.feasible is not None  # one resource: the least of each class always fits
        search.offer(search.feasible())
    near = blend(search, dual) if len(knapsack.weights) > 1 else None
    for choice in choices:
        _walk(search, choice)
    near = search.incumbent if near is None else near
    assert near is not None
    reference = tied_to(knapsack, dual.multipliers, dual.reference, near)
    climb = _Climb(search, dual.multipliers, reference, caps)
    while not climb.proved():
        caps.report(search.value, search.bound)
        if not climb.step():
            search.notes.append("the work cap was reached: the gap is what is left unproved")
            return


def _walk(search: Search, target: Ints) -> None:
    """Turn the incumbent into ``target`` class by class, as far as it fits."""
    assert search.incumbent is not None
    here = np.flatnonzero(target != search.incumbent)
    fits = np.ones(len(here), dtype=bool)
    slack = search.knapsack.slack(search.incumbent)
    for weight, room in zip(search.knapsack.weights, slack, strict=True):
        fits &= np.cumsum(weight[target[here]] - weight[search.incumbent[here]]) <= room
    if fits.any():
        choice = search.incumbent.copy()
        upto = here[: int(np.flatnonzero(fits)[-1]) + 1]
        choice[upto] = target[upto]
        search.offer(choice)


class _Climb:
    """Searches cores of rising size, and knows what the finished ones prove."""

    def __init__(self, search: Search, multipliers: Floats, reference: Ints, caps: Caps) -> None:
        self.search, self.caps = search, caps
        self.multipliers, self.reference = multipliers, reference
        knapsack = search.knapsack
        base = math.fsum(knapsack.values[reference].tolist())
        priced = float(multipliers @ knapsack.slack(reference))
        self.upper, self.magnitude = base + priced, abs(base) + abs(priced)
        self.quota, self.count, self.finished = FIRST_QUOTA, FIRST_CORE, 0
        self.exhausted = self.retreated = False
        self.care = 0
        self._common: float | None = None
        self._spread(CANDIDATES)

    def _spread(self, candidates: int) -> None:
        self.play = losses(
            self.search.knapsack, self.multipliers, self.reference, self.most, candidates
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
        self.search.lower_bound(self.upper - least + rounding)

    def proved(self) -> bool:
        if not self.exhausted and self.retreated:
            close = self.search.bound - self.search.value < self._step()
            if close:
                self.search.close(Fraction(0))
            elif self.caps.spent >= RESOLVE_WORK and self.search.within_resolution():
                self.search.complete = close = True
                self.search.notes.append("proved to the rounding of the values: see the gap")
            self.exhausted = close
        return self.exhausted

    def _step(self) -> float:
        """The least by which two choices in play can differ in value, if they do."""
        play, values = self.play, self.search.knapsack.values
        if play.reach < self.most + play.slop:
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
            self.exhausted = True
            self.search.close(Fraction(0))
            return True
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
            self.caps.spent += core.work + STEP_WORK + ITEM_WORK * count
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
            self.search.notes.append("a core too large for exact sums: rounding is in the gap")
        return self.care <= 2

    def _learn(self, core: Core, count: int, threshold: float, whole: bool) -> None:
        """A finished core met every choice that loses less than ``threshold``."""
        assert self.search.incumbent is not None
        least = threshold - self.play.slop - core.margin
        if whole or self.most < least:
            excess = core.excess(self.search.incumbent)
            self.exhausted = self.search.close(excess, final=self.care > 1)
            self.care += not self.exhausted
            return
        self._lower(least)
        self.finished, self.count = count, max(count + 16, int(GROW[len(self.multipliers) - 1] * count))
        if count == len(self.play.items):
            self._spread(8 * count)

    def _retreat(self, count: int) -> None:
        """Too much work: try a smaller core, or if that would gain little, allow more."""
        self.retreated = True
        finest = FINEST[len(self.multipliers) - 1]
        self.count = int(math.sqrt(max(self.finished, 1) * count))
        if self.count <= finest * self.finished or self.count < 16:
            self.quota *= 4
            self.count = max(16, int(finest * self.finished) + 1)
