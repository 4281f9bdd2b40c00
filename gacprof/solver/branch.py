"""One knapsack, searched until its best choice is proved or the caps are spent.

The dual gives multipliers and choices around the optimum; the best of those that fit is the
first incumbent. Then cores are searched (:mod:`gacprof.solver.expansion`). With two resources a
few large candidates can keep the dual bound far from any choice, so that cores explode: a part
that takes too long is split at a branching class, where the dual's choices differ, and each
half has multipliers and losses of its own. The part with the highest bound comes first.
"""

from __future__ import annotations

import heapq
import math
from itertools import count

import numpy as np

from gacprof.solver.dual import minimise
from gacprof.solver.expansion import FIRST_QUOTA, CoreExpansion
from gacprof.solver.incumbent import Caps, Incumbent, mix_dual_choices
from gacprof.solver.problem import Ints
from gacprof.solver.reduced_costs import tied_to

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


def optimise(incumbent: Incumbent, caps: Caps) -> None:
    """Fill ``incumbent``; on return it is complete, or the caps are spent."""
    knapsack = incumbent.knapsack
    best = knapsack.greatest(knapsack.values)
    incumbent.bound = knapsack.value(best)
    if incumbent.offer(best):
        incumbent.close(incumbent.bound)
        return
    dual = minimise(knapsack, caps.check)
    choices = (*dual.around, dual.reference)
    for choice in choices:
        incumbent.offer(choice)
    if incumbent.choice is None and not incumbent.settle_for_less():
        assert incumbent.feasible is not None  # one resource: the least of each class fits
        incumbent.offer(incumbent.feasible())
    near = mix_dual_choices(incumbent, dual) if len(knapsack.weights) > 1 else None
    for choice in choices:
        incumbent.walk(choice)
    near = incumbent.choice if near is None else near
    assert near is not None
    reference = tied_to(knapsack, dual.multipliers, dual.reference, near, None)
    _explore(incumbent, caps, CoreExpansion(incumbent, caps, dual, reference))


def _explore(incumbent: Incumbent, caps: Caps, root: CoreExpansion) -> None:
    """Settle every part, the one with the highest bound first."""
    turn = count()
    parts = [(-root.bound, next(turn), root)]
    settled = -math.inf
    if len(incumbent.knapsack.weights) > 1:
        root.allowance = _allowance(incumbent)
    while parts:
        part = parts[0][2]
        others = max(settled, -min((bound for bound, _, _ in parts[1:3]), default=math.inf))
        while not (part.proved() or part.stuck or part.spent >= part.allowance):
            caps.report(incumbent.value, incumbent.bound)
            if not part.step():
                incumbent.note("the work cap was reached: the gap is what is left unproved")
                return
            bound = min(incumbent.bound, max(part.bound, others))
            incumbent.bound = max(bound, incumbent.value)
        heapq.heappop(parts)
        if part.exhausted or part.bound <= incumbent.value:
            settled = max(settled, part.bound)
            continue
        halves = _split(incumbent, caps, part) if len(part.multipliers) > 1 else None
        if halves is None and part.stuck:
            incumbent.note("a core too large to be searched: the gap is what is left unproved")
            return
        for half in halves or (part,):
            if half.exhausted:
                settled = max(settled, half.bound)
            else:
                heapq.heappush(parts, (-half.bound, next(turn), half))
    incumbent.close(settled)


def _allowance(incumbent: Incumbent) -> int:
    return max(ALLOWANCE, PER_CLASS * incumbent.knapsack.classes)


def _split(
    incumbent: Incumbent, caps: Caps, part: CoreExpansion
) -> tuple[CoreExpansion, CoreExpansion] | None:
    """The halves of the best split, if that promises less work than the whole; else more work
    is allowed before the next attempt."""
    part.allowance = 4 * max(part.spent, _allowance(incumbent), FIRST_QUOTA)
    if not part.covered:
        return None  # nearly every candidate of very many: trying would take longer than searching
    best, least = None, math.inf if part.stuck else WORTH
    gap = part.bound - incumbent.value
    useful = part.active.loss <= part.most + part.active.slop
    ids = np.sort(np.append(part.reference, part.active.items[useful]))
    for one, other in _branching_pairs(part)[:TRIED]:
        halves = _halves(incumbent, caps, part, ids, one, other)
        if halves is None:
            continue
        left = [(half.bound - incumbent.value) / gap for half in halves]
        work = sum(math.exp(STEEP * (share - 1)) for share in left)
        if work < least:
            best, least = halves, work
    return best


def _halves(
    incumbent: Incumbent, caps: Caps, part: CoreExpansion, ids: Ints, one: int, other: int
) -> tuple[CoreExpansion, CoreExpansion] | None:
    """``ids``, the candidates of a part that a better choice can have, split between two of a
    class; None if all of the class is on one side."""
    knapsack = incumbent.knapsack
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
        incumbent.offer(dual.reference)
        assert incumbent.choice is not None
        reference = tied_to(knapsack, dual.multipliers, dual.reference, incumbent.choice, rest)
        halves.append(CoreExpansion(incumbent, caps, dual, reference, rest, part.bound))
        halves[-1].allowance = _allowance(incumbent)
    return halves[0], halves[1]


def _branching_pairs(part: CoreExpansion) -> list[tuple[int, int]]:
    """Pairs of candidates of one class, of different choices of the dual; furthest apart first."""
    knapsack, reference = part.knapsack, part.dual.reference
    widest: dict[int, tuple[float, int, int]] = {}
    for choice in part.dual.around:
        for k in np.flatnonzero(choice != reference).tolist():
            one, other = int(reference[k]), int(choice[k])
            apart = [abs(float(w[one] - w[other])) for w in knapsack.weights]
            width = float(part.multipliers @ np.array(apart))
            widest[k] = max(widest.get(k, (0.0, 0, 0)), (width, one, other))
    ranked = sorted(widest.values(), key=lambda found: -found[0])
    return [(one, other) for width, one, other in ranked if width > 0]
