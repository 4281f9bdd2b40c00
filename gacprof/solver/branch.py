"""One knapsack, searched until its best choice is proved or the caps are spent.

The dual gives multipliers and choices around the optimum; the best of those that fit is the
first incumbent. Then cores are searched (:mod:`gacprof.solver.expansion`). With two resources a
few large candidates can keep the dual bound far from any choice, so that cores explode: a
subproblem that takes too long is split at a branching class, where the dual's choices differ,
and each half has multipliers and losses of its own. The one with the highest bound comes first.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from itertools import count

import numpy as np

from gacprof.solver.dual import Dual
from gacprof.solver.expansion import FIRST_QUOTA, CoreExpansion
from gacprof.solver.incumbent import Caps, Incumbent
from gacprof.solver.knapsack import Subproblem
from gacprof.solver.problem import Ints

ALLOWANCE, PER_CLASS = 400_000, 64
"""Work on a subproblem before a split is tried, in states, and at least so many for each class:
that is about what trying takes."""

STEEP = 7.0
"""Work on a core grows like exp(√gap): by this exponent around the sizes that matter here."""

TRIED = 3
"""Splits tried each time."""

WORTH = 1.1
"""A subproblem is split if its halves together should take less than this many times its work:
what is hoped for beyond the estimate is that they are split again."""


def optimise(incumbent: Incumbent, caps: Caps, feasible: Callable[[], Ints] | None = None) -> None:
    """Fill ``incumbent``; on return it is complete, or the caps are spent. ``feasible`` finds a
    choice that fits where none is at hand: with one resource the least of each class does."""
    root = incumbent.root
    best = root.greatest(root.values)
    incumbent.bound = incumbent.knapsack.value(best)
    if incumbent.offer(best):
        incumbent.close(incumbent.bound)
        return

    def first(dual: Dual) -> None:
        """The choices around the dual's minimum, and what lies between them and the best."""
        for choice in dual.around:
            incumbent.offer(choice)
        if incumbent.choice is None and not incumbent.settle_for_less():
            assert feasible is not None
            incumbent.offer(feasible())
        for choice in (*dual.around, dual.reference):
            incumbent.walk(choice)

    _explore(incumbent, caps, CoreExpansion(incumbent, caps, root, first=first))


def _explore(incumbent: Incumbent, caps: Caps, root: CoreExpansion) -> None:
    """Settle every subproblem, the one with the highest bound first."""
    turn = count()
    open_ones = [(-root.bound, next(turn), root)]
    settled = -math.inf
    two = len(incumbent.knapsack.weights) > 1
    if two:
        root.allowance = _allowance(incumbent)
    while open_ones:
        node = open_ones[0][2]
        others = max(settled, -min((bound for bound, _, _ in open_ones[1:3]), default=math.inf))
        while not (node.proved() or node.stuck or node.spent >= node.allowance):
            caps.report(incumbent.value, incumbent.bound)
            if not node.step():
                incumbent.note("the work cap was reached: the gap is what is left unproved")
                return
            bound = min(incumbent.bound, max(node.bound, others))
            incumbent.bound = max(bound, incumbent.value)
        heapq.heappop(open_ones)
        if node.exhausted or node.bound <= incumbent.value:
            settled = max(settled, node.bound)
            continue
        halves = _split(incumbent, caps, node) if two else None
        if halves is None and node.stuck:
            incumbent.note("a core too large to be searched: the gap is what is left unproved")
            return
        for half in halves or (node,):
            if half.exhausted:
                settled = max(settled, half.bound)
            else:
                heapq.heappush(open_ones, (-half.bound, next(turn), half))
    incumbent.close(settled)


def _allowance(incumbent: Incumbent) -> int:
    return max(ALLOWANCE, PER_CLASS * incumbent.root.classes)


def _split(
    incumbent: Incumbent, caps: Caps, node: CoreExpansion
) -> tuple[CoreExpansion, CoreExpansion] | None:
    """The halves of the best split, if that promises less work than the whole; else more work
    is allowed before the next attempt."""
    node.allowance = 4 * max(node.spent, _allowance(incumbent), FIRST_QUOTA)
    if not node.covered:
        return None  # nearly every candidate of very many: trying would take longer than searching
    best, least = None, math.inf if node.stuck else WORTH
    gap = node.bound - incumbent.value
    useful = node.active.loss <= node.most + node.active.slop
    ids = np.sort(np.append(node.reference, node.active.items[useful]))
    for one, other in _branching_pairs(node)[:TRIED]:
        halves = _halves(incumbent, caps, node, ids, one, other)
        if halves is None:
            continue
        left = [(half.bound - incumbent.value) / gap for half in halves]
        work = sum(math.exp(STEEP * (share - 1)) for share in left)
        if work < least:
            best, least = halves, work
    return best


def _halves(
    incumbent: Incumbent, caps: Caps, node: CoreExpansion, ids: Ints, one: int, other: int
) -> tuple[CoreExpansion, CoreExpansion] | None:
    """``ids``, the candidates of a subproblem that a better choice can have, split between two of
    a class; None if all of the class is on one side."""
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
        rest = Subproblem(knapsack, np.delete(ids, drop))
        halves.append(CoreExpansion(incumbent, caps, rest, bound=node.bound))
        halves[-1].allowance = _allowance(incumbent)
    return halves[0], halves[1]


def _branching_pairs(node: CoreExpansion) -> list[tuple[int, int]]:
    """Pairs of candidates of one class, of different choices of the dual; furthest apart first."""
    knapsack, reference = node.knapsack, node.around[0]
    widest: dict[int, tuple[float, int, int]] = {}
    for choice in node.around[1:]:
        for k in np.flatnonzero(choice != reference).tolist():
            one, other = int(reference[k]), int(choice[k])
            apart = [abs(float(w[one] - w[other])) for w in knapsack.weights]
            width = float(node.multipliers @ np.array(apart))
            widest[k] = max(widest.get(k, (0.0, 0, 0)), (width, one, other))
    ranked = sorted(widest.values(), key=lambda found: -found[0])
    return [(one, other) for width, one, other in ranked if width > 0]
