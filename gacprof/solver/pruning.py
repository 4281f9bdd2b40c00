"""Which partial choices a core need not keep: dominated ones, and those bounded away.

A state is dominated if another weighs no more in anything and is worth no less.

From a state with some slack, whatever the remaining classes do, the loss ends at least at
ρ − δ·slack − D(δ), for any offset δ of the multipliers y with y + δ ≥ 0, where
D(δ) = Σ max(0, maxⱼ −ρⱼ − δ·Δweightⱼ) over the remaining classes. A set of offsets comes close
to the best of all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gacprof.solver.integers import Whole
from gacprof.solver.problem import Floats, Ints

NEIGHBOURS = 4
"""Of two weights, a state is compared with so many that weigh next less in the first."""

CHUNK = 500_000


def undominated(weights: list[Whole], gain: Whole) -> Ints:
    """Places of the states to keep, lightest first; for two weights some dominated ones stay."""
    order = np.lexsort((-gain, *reversed(weights)))
    gain = gain[order]
    keep = np.ones(len(order), dtype=bool)
    if len(weights) == 1:
        keep[1:] = gain[1:] > np.maximum.accumulate(gain)[:-1]
        return order[keep]
    other = weights[1][order]
    for lag in range(1, min(NEIGHBOURS + 1, len(order))):
        before, after = slice(None, -lag), slice(lag, None)
        keep[after] &= ~((other[before] <= other[after]) & (gain[before] >= gain[after]))
    return order[keep]


@dataclass(frozen=True)
class MultiplierSet:
    """``offsets`` δ, shape (resources, r), and D of the classes from k on, or of those before k,
    in column k of ``suffix`` and ``prefix``."""

    offsets: Floats
    suffix: Floats
    prefix: Floats

    def shortfall(self, dual: Floats, slack: list[Floats], chosen: slice | Ints) -> Floats:
        """−δ·slack − D(δ) for the chosen offsets, shape (offsets, states); ``dual`` is D(δ)."""
        return -(self.offsets[:, chosen].T @ np.array(slack)) - dual[chosen, None]


def multiplier_set(
    multipliers: Floats, moves: Floats, loss: Floats, bounds: Ints, limit: float
) -> MultiplierSet:
    """``moves``: Δweights of shape (resources, items), class k's at bounds[k]:bounds[k + 1]."""
    offsets = _offsets(multipliers, moves, loss, limit)
    starts = bounds[:-1]
    error = (len(starts) + 64) * 2.0**-52  # of a sum over the classes, of terms this large
    suffix = np.zeros((offsets.shape[1], len(starts) + 1))
    prefix = np.zeros_like(suffix)
    step = max(1, CHUNK // len(loss))
    for at in range(0, offsets.shape[1], step):
        some = offsets[:, at : at + step]
        terms = np.zeros((some.shape[1], len(loss))) + loss
        absolute = terms.copy()
        for offset, move in zip(some, moves, strict=True):
            term = np.multiply.outer(offset, move)
            terms += term
            absolute += np.abs(term)
        best = np.maximum(-np.minimum.reduceat(terms, starts, axis=1), 0)
        best += error * np.maximum.reduceat(absolute, starts, axis=1)
        suffix[at : at + step, :-1] = np.cumsum(best[:, ::-1], axis=1)[:, ::-1]
        prefix[at : at + step, 1:] = np.cumsum(best, axis=1)
    return MultiplierSet(offsets, suffix, prefix)


def _offsets(multipliers: Floats, moves: Floats, loss: Floats, limit: float) -> Floats:
    """Few directions, many lengths.

    Directions are even in the metric of the moves, lengths follow the losses per unit moved,
    and a few reach so far that a single unit too much costs more than the limit.
    """
    count = len(multipliers)
    unit = np.abs(moves).max(axis=1, keepdims=True)
    unit[unit == 0] = 1.0
    moves = moves / unit  # so that no square overflows, whatever the resources are counted in
    values, vectors = np.linalg.eigh(moves @ moves.T / moves.shape[1])
    largest = max(float(values.max()), 1e-280)
    whiten = vectors @ np.diag(np.maximum(values, 1e-12 * largest) ** -0.5) @ vectors.T
    size = np.sqrt((np.square(whiten @ moves)).sum(axis=0))
    with np.errstate(divide="ignore", invalid="ignore"):
        rates = np.sort(loss / size)
    rates = rates[np.isfinite(rates) & (rates > 0)]
    if count == 1:
        directions, places = np.array([[1.0, -1.0]]), 1.6 ** np.arange(28)
    else:
        angle = np.arange(14) * (2 * np.pi / 14)
        directions, places = np.stack([np.cos(angle), np.sin(angle)]), 2.0 ** np.arange(20)
    if len(rates):
        rates = rates[np.unique(np.minimum(places, len(rates)).astype(int) - 1)]
    far = limit * math.sqrt(largest) * float(unit.max())
    last = float(rates[-1]) if len(rates) else far * 2.0**-20
    reach = last * 4.0 ** np.arange(1, 25 if count > 1 else 3)
    lengths = np.concatenate([rates, reach[reach < 4 * far]])
    offsets = np.multiply.outer(whiten @ directions, lengths).reshape(count, -1) / unit
    offsets = np.concatenate([np.zeros((count, 1)), offsets, -multipliers[:, None]], axis=1)
    return np.unique(np.maximum(offsets, -multipliers[:, None]), axis=1)
