"""One knapsack, searched until its best choice is proved or the caps are spent.

The dual gives multipliers and choices around the optimum; the best of those that fit is the
first incumbent. Whatever loses at most g against the dual bound is met by searching the core of
the candidates that lose at most g, so cores of rising size are searched: an incumbent that loses
no more than g is optimal, and proved so.

With two resources a few large candidates can keep the dual bound far from any choice, so that
cores explode: a subproblem that takes too long is split at a branching class, where the dual's
choices differ, and each half has multipliers and losses of its own. The one with the highest
bound comes first.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import count

import numpy as np

from gacprof.core import Progress
from gacprof.solver.core import STEP_WORK, Core
from gacprof.solver.dual import Dual, active_items, minimise
from gacprof.solver.problem import Ints, Knapsack, Subproblem

RESOLUTION = 2.0**-47
"""Gaps within this part of Σ|value|, some 7e-15, are the rounding of the values themselves."""

ALLOWANCE, PER_CLASS = 400_000, 64
"""Work on a subproblem before a split is tried, in states, and at least so many for each class:
that is about what trying takes."""

STEEP = 7.0
"""Work on a core grows like exp(√gap): by this exponent around the sizes that matter here."""

TRIED, WORTH = 3, 1.1
"""Splits tried each time. A subproblem is split if its halves together should take less than so
many times its work: what is hoped for beyond the estimate is that they are split again."""

CANDIDATES = 1 << 17
"""How many candidates are sorted by loss at first; more only if these do not suffice."""

RESOLVE_WORK = 8_000_000
"""After so much work on a gap within the resolution, the rest is taken to be rounding."""

FIRST_CORE, FIRST_QUOTA, MOST_QUOTA = 48, 1 << 17, 1 << 24
"""Candidates of the first core, its states, and the most states of any: a core of more takes more
than a gigabyte, so its subproblem is split instead."""

ITEM_WORK = 64
"""What it costs to lay out a core, in states per candidate."""

GROW, CAUTIOUS = (3.0, 1.5), 1.2
"""Finished cores grow by so much, for one resource and for two, where the states explode; one that
was given up by ``CAUTIOUS``, counted from the last finished one."""


@dataclass
class Caps:
    """What may be spent. ``check`` raises ``TimeoutError`` when the time is over."""

    work: int
    deadline: float | None = None
    progress: Progress | None = None
    spent: int = 0

    def check(self) -> None:
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise TimeoutError


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


def optimise(incumbent: Incumbent, feasible: Callable[[], Ints] | None = None) -> None:
    """Fill ``incumbent``; on return it is complete, or the caps are spent. ``feasible`` finds a
    choice that fits where none is at hand: with one resource the least of each class does."""
    root = incumbent.root
    best = root.greatest(root.values)
    incumbent.bound = incumbent.knapsack.value(best)
    if incumbent.offer(best):
        incumbent.close(incumbent.bound)
        return
    dual = minimise(root, incumbent.caps.check)
    for choice in (dual.reference, *dual.around):
        incumbent.offer(choice)
    if incumbent.choice is None and not incumbent.settle_for_less():
        assert feasible is not None
        incumbent.offer(feasible())
    for choice in (*dual.around, dual.reference):
        incumbent.walk(choice)
    _explore(incumbent, CoreExpansion(incumbent, root, dual))


def _explore(incumbent: Incumbent, root: CoreExpansion) -> None:
    """Settle every subproblem, the one with the highest bound first."""
    turn = count()
    open_ones = [(-root.bound, next(turn), root)]
    settled = -math.inf
    while open_ones:
        node = open_ones[0][2]
        others = max(settled, -min((bound for bound, _, _ in open_ones[1:3]), default=math.inf))
        while not (node.proved() or node.stuck or node.spent >= node.allowance):
            if incumbent.caps.progress is not None:
                incumbent.caps.progress(incumbent.value, incumbent.bound, "bound")
            if not node.step():
                incumbent.note("the work cap was reached: the gap is what is left unproved")
                return
            bound = min(incumbent.bound, max(node.bound, others))
            incumbent.bound = max(bound, incumbent.value)
        heapq.heappop(open_ones)
        if node.exhausted or node.bound <= incumbent.value:
            settled = max(settled, node.bound)
            continue
        halves = _split(node)
        if halves is None and node.stuck:
            incumbent.note("a core too large to be searched: the gap is what is left unproved")
            return
        for half in halves or (node,):
            if half.exhausted:
                settled = max(settled, half.bound)
            else:
                heapq.heappush(open_ones, (-half.bound, next(turn), half))
    incumbent.close(settled)


def _split(node: CoreExpansion) -> tuple[CoreExpansion, CoreExpansion] | None:
    """The halves of the best split, if that promises less work than the whole; else more work
    is allowed before the next attempt."""
    node.allowance = 4 * max(node.spent, node.allowance, FIRST_QUOTA)
    if len(node.multipliers) < 2 or not node.covered:
        return None  # nearly every candidate of very many: trying would take longer than searching
    best, least = None, math.inf if node.stuck else WORTH
    value = node.incumbent.value
    useful = node.active.loss <= node.most + node.active.slop
    ids = np.sort(np.append(node.reference, node.active.items[useful]))
    for one, other in _branching_pairs(node)[:TRIED]:
        halves = _halves(node, ids, one, other)
        if halves is None:
            continue
        left = [(half.bound - value) / (node.bound - value) for half in halves]
        work = sum(math.exp(STEEP * (share - 1)) for share in left)
        if work < least:
            best, least = halves, work
    return best


def _halves(
    node: CoreExpansion, ids: Ints, one: int, other: int
) -> tuple[CoreExpansion, CoreExpansion] | None:
    """``ids``, the candidates of a subproblem that a better choice can have, split between two of
    a class; None if all of the class is on one side."""
    knapsack = node.knapsack
    here = np.flatnonzero(knapsack.owner[ids] == knapsack.owner[one])
    heavy = ids[here] == one
    for weight in knapsack.weights:
        if weight[one] != weight[other]:
            heavy = weight[ids[here]] > min(weight[one], weight[other])
            break
    if heavy.all() or not heavy.any():
        return None
    halves = []
    for drop in (here[heavy], here[~heavy]):
        rest = Subproblem(knapsack, np.delete(ids, drop))
        dual = minimise(rest, node.incumbent.caps.check)
        halves.append(CoreExpansion(node.incumbent, rest, dual, node.bound))
    return halves[0], halves[1]


def _branching_pairs(node: CoreExpansion) -> list[tuple[int, int]]:
    """Pairs of candidates of one class, of different choices of the dual; furthest apart first."""
    reference = node.around[0]
    widest: dict[int, tuple[float, int, int]] = {}
    for choice in node.around[1:]:
        for k in np.flatnonzero(choice != reference).tolist():
            one, other = int(reference[k]), int(choice[k])
            apart = [abs(float(w[one] - w[other])) for w in node.knapsack.weights]
            width = float(node.multipliers @ np.array(apart))
            widest[k] = max(widest.get(k, (0.0, 0, 0)), (width, one, other))
    ranked = sorted(widest.values(), key=lambda found: -found[0])
    return [(one, other) for width, one, other in ranked if width > 0]


class CoreExpansion:
    """A subproblem under search. ``bound`` holds for every choice of it; ``exhausted``: none beats
    the incumbent; ``stuck``: no core that could prove more may grow as large as it would have to;
    ``spent`` and ``allowance``: work done, and work allowed before a split is tried."""

    def __init__(
        self, incumbent: Incumbent, subproblem: Subproblem, dual: Dual, bound: float = math.inf
    ) -> None:
        self.incumbent, self.subproblem, self.bound = incumbent, subproblem, bound
        self.knapsack = incumbent.knapsack
        incumbent.offer(dual.reference)
        self.multipliers, self.around = dual.multipliers, (dual.reference, *dual.around)
        self.reference = dual.reference
        value = self.knapsack.value(self.reference)
        priced = float(self.multipliers @ self.knapsack.slack(self.reference))
        self.upper, self.magnitude = value + priced, abs(value) + abs(priced)
        self.quota, self.count, self.finished, self.spent = FIRST_QUOTA, FIRST_CORE, 0, 0
        one = len(self.multipliers) < 2
        self.allowance = math.inf if one else max(ALLOWANCE, PER_CLASS * incumbent.root.classes)
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
        worked = not self.exhausted and self.spent >= RESOLVE_WORK
        if worked and self.incumbent.within_resolution(self.bound):
            self.exhausted = True
            self.incumbent.note("proved to the rounding of the values: see the gap")
        return self.exhausted

    def step(self) -> bool:
        """Search one core; false if the caps do not allow it."""
        most, active, caps = self.most, self.active, self.incumbent.caps
        inside = int(np.searchsorted(active.loss, most + active.slop, side="right"))
        count = min(self.count, inside)
        whole = self.covered and count == inside
        if whole and not count:
            self._close(Fraction(0))
            return True
        beyond = active.loss[count] if count < len(active.loss) else active.reach
        threshold = most if whole else float(beyond)
        ties = threshold <= 2 * active.slop  # nothing to prove here, but much to find
        left = caps.work - caps.spent
        if left <= 0 or count * ITEM_WORK > left:
            return False
        core = Core(self.knapsack, active, count, most if ties else threshold)
        try:
            finished = core.search(min(self.quota, left), caps.check)
        finally:
            work = core.work + STEP_WORK + ITEM_WORK * count
            self.spent, caps.spent = self.spent + work, caps.spent + work
            if core.best is not None:
                self.incumbent.offer(core.choice())
        if finished:
            self._learn(core, count, threshold, whole)
        else:  # too much work: allow more, for a core little larger than the last finished one
            self.stuck = self.quota >= MOST_QUOTA
            self.quota = min(4 * self.quota, MOST_QUOTA)
            self.count = max(16, int(CAUTIOUS * self.finished) + 1)
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
