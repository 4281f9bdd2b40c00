"""Other multipliers near the best ones, each with the dual of what is still to come.

From a state with some slack, whatever the remaining classes do, the loss ends at least at
ρ − δ·slack − D(δ), for any offset δ with y + δ ≥ 0, where D(δ) = Σ max(0, maxⱼ −ρⱼ − δ·moveⱼ)
over the remaining classes. A fan of offsets comes close to the best of all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gacprof.solver.problem import Floats, Ints

CHUNK = 500_000


@dataclass(frozen=True)
class Fan:
    """``rays`` δ, shape (resources, r), and D of the classes from k on, or of those before k,
    in column k of ``suffix`` and ``prefix``."""

    rays: Floats
    suffix: Floats
    prefix: Floats

    def shortfall(self, dual: Floats, slack: list[Floats], chosen: slice | Ints) -> Floats:
        """−δ·slack − D(δ) for the chosen rays, shape (rays, states); ``dual`` is D(δ)."""
        rays = self.rays[:, chosen]
        short = np.multiply.outer(-rays[0], slack[0])
        for ray, rest in zip(rays[1:], slack[1:], strict=True):
            short -= np.multiply.outer(ray, rest)
        short -= dual[chosen, None]
        return short


def open_fan(multipliers: Floats, moves: Floats, rho: Floats, bounds: Ints, limit: float) -> Fan:
    """For ``moves`` of shape (resources, items), class k's items at bounds[k]:bounds[k + 1]."""
    rays = _rays(multipliers, moves, rho, limit)
    starts = bounds[:-1]
    error = (len(starts) + 64) * 2.0**-52  # of a sum over the classes, of terms this large
    suffix = np.zeros((rays.shape[1], len(starts) + 1))
    prefix = np.zeros_like(suffix)
    step = max(1, CHUNK // len(rho))
    for at in range(0, rays.shape[1], step):
        some = rays[:, at : at + step]
        terms = np.zeros((some.shape[1], len(rho))) + rho
        absolute = terms.copy()
        for ray, move in zip(some, moves, strict=True):
            term = np.multiply.outer(ray, move)
            terms += term
            absolute += np.abs(term)
        best = np.maximum(-np.minimum.reduceat(terms, starts, axis=1), 0)
        best += error * np.maximum.reduceat(absolute, starts, axis=1)
        suffix[at : at + step, :-1] = np.cumsum(best[:, ::-1], axis=1)[:, ::-1]
        prefix[at : at + step, 1:] = np.cumsum(best, axis=1)
    return Fan(rays, suffix, prefix)


def _rays(multipliers: Floats, moves: Floats, rho: Floats, limit: float) -> Floats:
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
        rates = np.sort(rho / size)
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
    fan = np.multiply.outer(whiten @ directions, lengths).reshape(count, -1) / unit
    rays = np.concatenate([np.zeros((count, 1)), fan, -multipliers[:, None]], axis=1)
    return np.unique(np.maximum(rays, -multipliers[:, None]), axis=1)
