"""Mixing choices that are equally good, so that together they meet both resources."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from gacprof.solver.dual import Dual
from gacprof.solver.problem import Floats, Ints

if TYPE_CHECKING:
    from gacprof.solver.search import Search

MANY = 8
"""Fewer classes in which the choices differ are left to the search."""

SPARE = (0.0, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
"""Parts of the slack of the corners that are left unused, until the mixture fits."""


def blend(search: Search, dual: Dual) -> Ints | None:
    """A choice near both limits where thousands of classes are tied; the search gets it too.

    The best choices at the dual's minimum span the room left between them: weights θ are found
    with which their slacks average to zero, and classes are dealt to them in these proportions.
    """
    knapsack = search.knapsack
    height = dual.multipliers @ knapsack.slack(dual.reference) + search.total(dual.reference)
    corners: list[Ints] = []
    for choice in (dual.reference, *dual.around):
        at = dual.multipliers @ knapsack.slack(choice) + search.total(choice)
        if at >= height - 1e-12 * abs(height) and not any((choice == c).all() for c in corners):
            corners.append(choice)
    nearest = None
    for three in combinations(corners[:8], 3):
        apart = np.flatnonzero((three[0] != three[1]) | (three[0] != three[2]))
        if len(apart) < MANY:
            continue
        slacks = np.array([knapsack.slack(choice) for choice in three])
        for spare in SPARE:
            shares = _shares(slacks, spare * np.abs(slacks).max(axis=0))
            if shares is None:
                break
            mixed = _deal(three, apart, shares)
            nearest = mixed if nearest is None else nearest
            if search.offer(mixed):
                return nearest
    return nearest


def _shares(slacks: Floats, target: Floats) -> Floats | None:
    """θ ≥ 0 with Σθ = 1 and Σθ·slacks = target."""
    try:
        shares = np.linalg.solve(np.vstack([slacks.T, np.ones(3)]), np.append(target, 1.0))
    except np.linalg.LinAlgError:
        return None
    return shares if (shares >= -1e-9).all() else None


def _deal(choices: tuple[Ints, ...], apart: Ints, shares: Floats) -> Ints:
    """Class by class in golden-ratio order, which keeps every stretch close to the shares."""
    turn = np.arange(1, len(apart) + 1) * 0.6180339887498949 % 1.0
    of = np.searchsorted(np.cumsum(shares[:-1]), turn, side="right")
    mixed = choices[0].copy()
    mixed[apart] = np.array([choice[apart] for choice in choices])[of, np.arange(len(apart))]
    return mixed
