"""Which partial choices another one beats: it weighs no more in anything and is worth no less."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gacprof.solver.problem import Ints

Whole = NDArray[Any]

LEVELS, BLOCK = 24, 1024
"""Steps of the second weight at which the best value so far is kept, and states at a time."""

LAGS = 4
LOWEST = np.iinfo(np.int64).min


def undominated(weights: list[Whole], gain: Whole) -> Ints:
    """Places of the states to keep, lightest first; for two weights some beaten ones stay."""
    if len(weights) == 1:
        return _one(weights[0], gain)
    if any(whole.dtype == object for whole in (*weights, gain)):
        order = np.argsort(weights[0], kind="stable")
        return order[_neighbours(weights[1][order], gain[order])]
    order = np.lexsort((-gain, weights[1], weights[0]))
    order = order[_neighbours(weights[1][order], gain[order])]
    return order[_levels(weights[1][order], gain[order])] if len(order) > 64 else order


def _one(weight: Whole, gain: Whole) -> Ints:
    order = np.argsort(weight, kind="stable")
    weight, gain = weight[order], gain[order]
    if not len(order):
        return order
    best = np.maximum.accumulate(gain)
    keep = np.append(True, gain[1:] > best[:-1])
    order, weight = order[keep], weight[keep]
    return order[np.append(weight[1:] != weight[:-1], True)]


def _neighbours(other: Whole, gain: Whole) -> Ints:
    """Of states in order of the first weight, those that none just before them beats."""
    keep = np.ones(len(other), dtype=bool)
    for lag in range(1, min(LAGS + 1, len(other))):
        before, after = slice(None, -lag), slice(lag, None)
        keep[after] &= ~((other[before] <= other[after]) & (gain[before] >= gain[after]))
    return np.flatnonzero(keep)


def _levels(other: Ints, gain: Ints) -> Ints:
    """Of states in order of the first weight, those that none before them, on a lower level of
    the second, beats. A state that is exactly on a level meets all up to it."""
    sample = np.sort(other[:: max(1, len(other) // 1024)])
    levels = np.unique(sample[np.linspace(0, len(sample) - 1, LEVELS).astype(int)])
    level = np.searchsorted(levels, other, side="left")
    on = levels[np.minimum(level, len(levels) - 1)] == other
    below = np.where(on, level, level - 1)
    keep = np.ones(len(other), dtype=bool)
    best = np.full((len(levels) + 1, BLOCK + 1), LOWEST)
    for at in range(0, len(other), BLOCK):
        some = slice(at, min(at + BLOCK, len(other)))
        count = some.stop - some.start
        last = best[:, -1].copy() if at else LOWEST
        best.fill(LOWEST)
        best[:, 0] = last
        best[level[some], np.arange(1, count + 1)] = gain[some]
        np.maximum.accumulate(best, axis=1, out=best)
        upto = np.maximum.accumulate(best, axis=0)
        row = below[some]
        keep[some] = (row < 0) | (upto[row, np.arange(count)] < gain[some])
    return np.flatnonzero(keep)
