"""One knapsack, searched until its best choice is proved or the caps are spent.

The dual gives multipliers and choices around the optimum; the best of those that fit is the
first incumbent. Then cores are searched (:mod:`gacprof.solver.climb`). With two resources a few
large candidates can keep the dual bound far from any choice, so that cores explode: a part that
takes too long is split at a class on which the dual is torn, and each half has multipliers and
losses of its own. The part with the highest bound comes first.
"""

from __future__ import annotations

import heapq
import math
from fractions import Fraction
from itertools import count

import numpy as np

from gacprof.solver.blend import blend
from gacprof.solver.climb import FIRST_QUOTA, Climb
from gacprof.solver.combine import combine
from gacprof.solver.dual import minimise
from gacprof.solver.losses import tied_to
from gacprof.solver.problem import Ints
from gacprof.solver.search import Caps, Search

ALLOWANCE, PER_CLASS = 400_000, 64
"""Work on a part before a split is tried, in states, and at least so many for each class: that
is about what trying takes."""

STEEP = 7.0
"""Work on a core grows like exp(√gap): by this exponent around the sizes that matter here."""

TRIED = 3
"""Splits tried each time."""

WORTH = 1.1
"""A part is split if its halves together should take less than this many times its work: what
is hoped for beyond the estimate is that they are split again."""


def optimise(search: Search, caps: Caps) -> None:
    """Fill ``search``; on return it is complete, or the caps are spent."""
    knapsack = search.knapsack
    best = knapsack.most_valued()
    search.bound = math.fsum(knapsack.values[best].tolist())
    if search.offer(best):
        search.close(search.nothing_better(Fraction(0)))
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
    reference = tied_to(knapsack, dual.multipliers, dual.reference, near, None)
    _explore(search, caps, Climb(search, caps, dual, reference))


def _explore(search: Search, caps: Caps, root: Climb) -> None:
    """Settle every part, the one with the highest bound first."""
    turn = count()
    parts = [(-root.bound, next(turn), root)]
    settled = -math.inf
    if len(search.knapsack.weights) > 1:
        root.allowance = _allowance(search)
    while parts:
        part = parts[0][2]
        others = max(settled, -min((bound for bound, _, _ in parts[1:3]), default=math.inf))
        while not (part.proved() or part.stuck or part.spent >= part.allowance):
            caps.report(search.value, search.bound)
            if not part.step():
                search.note("the work cap was reached: the gap is what is left unproved")
                return
            search.bound = max(min(search.bound, max(part.bound, others)), search.value)
        heapq.heappop(parts)
        if part.exhausted or part.bound <= search.value:
            settled = max(settled, part.bound)
            continue
        halves = _split(search, caps, part) if len(part.multipliers) > 1 else None
        if halves is None and part.stuck:
            search.note("a core too large to be searched: the gap is what is left unproved")
            return
        for half in halves or (part,):
            if half.exhausted:
                settled = max(settled, half.bound)
            else:
                heapq.heappush(parts, (-half.bound, next(turn), half))
    search.close(settled)


def _split(search: Search, caps: Caps, part: Climb) -> tuple[Climb, Climb] | None:
    """The halves of the best split, if that promises less work than the whole; else more work
    is allowed before the next attempt."""
    part.attempts += 1
    if combine(search, part.play, part.attempts):
        part.allowance, part.stuck = part.spent + _allowance(search), False
        return None
    part.allowance = 4 * max(part.spent, _allowance(search), FIRST_QUOTA)
    if part.play.reach < part.most + part.play.slop:
        return None  # nearly every candidate of very many: trying would take longer than searching
    best, least = None, math.inf if part.stuck else WORTH
    gap = part.bound - search.value
    ids = _worthwhile(part)
    for one, other in _torn(part)[:TRIED]:
        halves = _halves(search, caps, part, ids, one, other)
        if halves is None:
            continue
        left = [(half.bound - search.value) / gap for half in halves]
        work = sum(math.exp(STEEP * (share - 1)) for share in left)
        if work < least:
            best, least = halves, work
    return best


def _allowance(search: Search) -> int:
    return max(ALLOWANCE, PER_CLASS * search.knapsack.classes)


def _halves(
    search: Search, caps: Caps, part: Climb, ids: Ints, one: int, other: int
) -> tuple[Climb, Climb] | None:
    """What is worthwhile of a part, split between two candidates of a class; None if all of the
    class is on one side."""
    knapsack = search.knapsack
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
        rest = np.delete(ids, drop)
        dual = minimise(knapsack, caps.check, rest)
        assert search.incumbent is not None
        search.offer(dual.reference)
        reference = tied_to(knapsack, dual.multipliers, dual.reference, search.incumbent, rest)
        halves.append(Climb(search, caps, dual, reference, rest, part.bound))
        halves[-1].allowance = _allowance(search)
    return halves[0], halves[1]


def _worthwhile(part: Climb) -> Ints:
    """The candidates that a better choice can have."""
    play = part.play
    return np.sort(np.append(part.reference, play.items[play.loss <= part.most + play.slop]))


def _torn(part: Climb) -> list[tuple[int, int]]:
    """Pairs of candidates of one class that the dual is torn between, the furthest apart first."""
    knapsack, reference = part.search.knapsack, part.dual.reference
    widest: dict[int, tuple[float, int, int]] = {}
    for choice in part.dual.around:
        for k in np.flatnonzero(choice != reference).tolist():
            one, other = int(reference[k]), int(choice[k])
            apart = [abs(float(w[one] - w[other])) for w in knapsack.weights]
            width = float(part.multipliers @ np.array(apart))
            widest[k] = max(widest.get(k, (0.0, 0, 0)), (width, one, other))
    ranked = sorted(widest.values(), key=lambda found: -found[0])
    return [(one, other) for width, one, other in ranked if width > 0]


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
