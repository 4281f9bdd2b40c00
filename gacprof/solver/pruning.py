"""Which states a core need not keep: dominated ones, and those that no completion can save.

A state is dominated if another weighs no more in anything and is worth no less.

Take a state with some slack and a loss ρ. Whatever the remaining classes do, the loss ends at
least at ρ − δ·slack − D(δ), for any change δ of the multipliers y with y + δ ≥ 0, where
D(δ) = Σ max(0, maxⱼ −ρⱼ − δ·Δweightⱼ) over the remaining classes: it is the dual bound at y + δ.
A set of such multipliers, laid around y, comes close to the best of all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gacprof.solver.problem import Floats, Ints

NEIGHBOURS = 4
"""Of two weights, a state is compared with so many that weigh next less in the first."""

DIRECTIONS, LENGTHS = 14, 40
"""How many multipliers are laid around y: in so many directions (two resources), so far."""

CHUNK = 500_000
"""Numbers held at once while D is tabulated."""

SAMPLE = 128
"""From so many states is learnt which multipliers prune most."""


def undominated(weights: Ints, gain: Ints) -> Ints:
    """Places of the states to keep, lightest first; for two weights some dominated ones stay."""
    order = np.lexsort((-gain, *weights[::-1]))
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
    """Changes δ of the multipliers, shape (m, resources); column k of ``rest`` is D(δ) of the
    classes from k on."""

    changes: Floats
    rest: Floats

    def shortfall(self, k: int, slack: Floats) -> Floats:
        """The most of −δ·slack − D(δ) over all δ, for each state before class k.

        A few δ do nearly all the work: those that are best for some of a sample of the states.
        Any selection gives a valid bound.
        """
        states = slack.shape[1]
        changes, rest = self.changes, self.rest[:, k]
        if states > 4 * SAMPLE:
            sample = slack[:, :: states // SAMPLE]
            useful = np.unique((-(changes @ sample) - rest[:, None]).argmax(axis=0))
            changes, rest = changes[useful], rest[useful]
        return np.asarray((-(changes @ slack) - rest[:, None]).max(axis=0))


def multiplier_set(
    multipliers: Floats, moves: Floats, loss: Floats, starts: Ints, limit: float
) -> MultiplierSet:
    """``moves``: Δweights of shape (resources, items), class after class from ``starts`` on."""
    changes = _changes(multipliers, moves, loss, limit)
    error = (len(starts) + 64) * 2.0**-52  # of a sum over the classes, of terms this large
    rest = np.zeros((len(changes), len(starts) + 1))
    step = max(1, CHUNK // len(loss))
    for at in range(0, len(changes), step):
        some = changes[at : at + step]
        best = np.maximum(-np.minimum.reduceat(loss + some @ moves, starts, axis=1), 0)
        size = loss + np.abs(some) @ np.abs(moves)
        best += error * np.maximum.reduceat(size, starts, axis=1)
        rest[at : at + step, :-1] = np.cumsum(best[:, ::-1], axis=1)[:, ::-1]
    return MultiplierSet(changes, rest)


def _changes(multipliers: Floats, moves: Floats, loss: Floats, limit: float) -> Floats:
    """Directions are even in the metric of the moves. Lengths rise from the least loss per unit
    moved to where a single unit too much costs more than the limit."""
    count = len(multipliers)
    unit = np.abs(moves).max(axis=1)
    unit[unit == 0] = 1.0
    scaled = moves / unit[:, None]  # so that no square overflows
    values, vectors = np.linalg.eigh(scaled @ scaled.T / scaled.shape[1])
    largest = max(float(values.max()), 1e-280)
    whiten = vectors @ np.diag(np.maximum(values, 1e-12 * largest) ** -0.5) @ vectors.T
    size = np.linalg.norm(whiten @ scaled, axis=0)
    angle = np.arange(DIRECTIONS) * (2 * np.pi / DIRECTIONS)
    directions = np.array([[1.0, -1.0]]) if count == 1 else np.stack([np.cos(angle), np.sin(angle)])
    useful = (size > 0) & (loss > 0)
    rates = np.sort(loss[useful] / size[useful])
    lengths = np.zeros(1)
    if len(rates):
        far = max(4 * limit * float(unit.max()) * largest**0.5, 4 * rates[-1])
        places = np.unique(np.geomspace(1, len(rates), LENGTHS // 2).astype(int) - 1)
        lengths = np.append(rates[places], np.geomspace(rates[-1], far, LENGTHS // 2)[1:])
    changes = np.multiply.outer(lengths, (whiten @ directions).T).reshape(-1, count) / unit
    changes = np.concatenate([np.zeros((1, count)), changes, -multipliers[None]])
    return np.unique(np.maximum(changes, -multipliers), axis=0)
