"""Better choices near the dual's: a few moves that together fill the room it leaves.

A move puts one class at another candidate. All pairs of the cheapest moves, and triples of the
very cheapest, are listed with what they weigh and lose; every two of these lists' entries whose
weights nearly fill the room of both resources are tried together. Some 10⁹ combinations of up to
six moves are seen this way for the price of sorting the list.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from gacprof.solver.incumbent import Incumbent
from gacprof.solver.inputs import Floats, Ints
from gacprof.solver.problem import Knapsack
from gacprof.solver.reduced_costs import Active

PAIRS, TRIPLES = 240, 48
"""So many of the cheapest moves are paired, and so many of these are put in threes."""

PER_CLASS = 12
"""At most so many moves of a class: where its candidates are tied they would crowd out others."""

PER_CELL, CELLS, NEIGHBOURS = 24, 6, 3
"""The list is cut into cells by the first resource, ordered by the second in each; what leaves
least room is sought in the last few cells that fit, among the last few entries that fit."""

OFFERED = 8

FAILURES = 3
"""So many lists in vain, and it is left at that."""


@dataclass(frozen=True)
class _Moves:
    """Sets of up to three moves: ``members`` of shape (3, sets) are items, −1 for none."""

    members: Ints
    first: Floats
    second: Floats
    loss: Floats

    def only(self, keep: Ints) -> _Moves:
        return _Moves(self.members[:, keep], self.first[keep], self.second[keep], self.loss[keep])


def exchange(incumbent: Incumbent, active: Active, attempt: int) -> bool:
    """Offer the best combinations of moves from the dual's choice, then from the incumbent, as
    long as that helps; true if it did. Every attempt looks at other moves."""
    helped = _improve(incumbent, active, active.reference, 0)
    turn, failed = attempt * (attempt - 1), 0
    while failed < FAILURES:
        assert incumbent.choice is not None
        better = _improve(incumbent, active, incumbent.choice, turn)
        helped |= better
        failed = 0 if better else failed + 1
        turn += not better
    return helped


def _improve(incumbent: Incumbent, active: Active, base: Ints, turn: int) -> bool:
    knapsack = incumbent.knapsack
    moves = _listed(knapsack, active, base, turn)
    room = knapsack.slack(base)
    edges = np.unique(np.sort(moves.first)[::PER_CELL])
    cell = np.searchsorted(edges, moves.first, side="right")
    span = 2 * float(np.ptp(moves.second)) + 1e-300
    lowest = float(moves.second.min())
    key = cell * span + (moves.second - lowest)
    order = np.argsort(key, kind="stable")
    moves, key = moves.only(order), key[order]
    left = room[0] - moves.first, room[1] - moves.second
    fitting = np.searchsorted(edges, left[0], side="right")
    best: set[tuple[float, int, int]] = set()
    for back in range(CELLS):
        goal = (fitting - back) * span
        last = np.searchsorted(key, goal + np.clip(left[1] - lowest, -span / 4, span / 2), "right")
        for other in range(1, NEIGHBOURS + 1):
            best.update(_best(moves, active.multipliers, left, np.maximum(last - other, 0)))
    found = False
    for _, one, other in sorted(best)[:OFFERED]:
        choice = base.copy()
        items = moves.members[:, [one, other]]
        items = items[items >= 0]
        choice[knapsack.owner[items]] = items
        found |= incumbent.offer(choice)
    return found


def _listed(knapsack: Knapsack, active: Active, base: Ints, turn: int) -> _Moves:
    """No move, single moves, pairs and triples, each of different classes."""
    items, loss = _cheapest(knapsack, active, base, turn)
    count, owner = len(items), knapsack.owner[items]
    sets = [np.array([[-1, -1, -1]])]  # −1 points at the zero appended below
    for size, most in ((1, count), (2, count), (3, TRIPLES)):
        some = np.array(list(combinations(range(min(most, count)), size)), dtype=np.int64)
        some = some.reshape(-1, size)
        classes = np.sort(owner[some], axis=1)
        some = some[(np.diff(classes, axis=1) > 0).all(axis=1)]
        sets.append(np.pad(some, ((0, 0), (0, 3 - size)), constant_values=-1))
    members = np.concatenate(sets).T
    first, second, lost = (
        np.append(amount, 0.0)[members].sum(axis=0)
        for amount in (*((w[items] - w[base[owner]]) for w in knapsack.weights), loss)
    )
    return _Moves(np.append(items, -1)[members], first, second, lost)


def _cheapest(knapsack: Knapsack, active: Active, base: Ints, turn: int) -> tuple[Ints, Floats]:
    """The moves from ``base`` that lose least, few of each class; later turns mix in others."""
    items = np.concatenate([active.items, active.reference[base != active.reference]])
    items = items[items != base[knapsack.owner[items]]]
    loss = knapsack.reduced_costs(active.multipliers, items, base[knapsack.owner[items]])
    likely = np.random.default_rng(turn).random(len(items)) if turn else np.ones(len(items))
    order = np.argsort(np.maximum(loss, 0) / likely, kind="stable")[: 64 * PAIRS]
    owner = knapsack.owner[items[order]]
    by_class = np.argsort(owner, kind="stable")
    ranked = owner[by_class]
    rank = np.empty(len(order), dtype=np.int64)
    rank[by_class] = np.arange(len(order)) - np.searchsorted(ranked, ranked)
    few = order[rank < PER_CLASS][:PAIRS]
    return items[few], loss[few]


def _best(
    moves: _Moves, multipliers: Floats, left: tuple[Floats, Floats], partner: Ints
) -> list[tuple[float, int, int]]:
    """The best few sets with their partners: loss, set, partner."""
    spare = left[0] - moves.first[partner], left[1] - moves.second[partner]
    loss = moves.loss + moves.loss[partner]
    loss += multipliers[0] * spare[0] + multipliers[1] * spare[1]
    loss[(spare[0] < 0) | (spare[1] < 0)] = np.inf
    some = np.argpartition(loss, min(OFFERED, len(loss) - 1))[:OFFERED]
    pairs = [(float(loss[i]), int(i), int(partner[i])) for i in some]
    return [(x, min(i, k), max(i, k)) for x, i, k in pairs if x < np.inf]
