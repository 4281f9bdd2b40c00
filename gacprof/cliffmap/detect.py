"""What a curve of latency over a dim tells: envelope, penalty, frontier, safe dims, edges.

Pure functions on parallel columns: ``d`` strictly ascending dims, ``latency`` in microseconds.
Nothing here knows of multiples of 8, of kernels, or of GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import expm1, hypot, isfinite, log, log1p
from statistics import NormalDist

ASSUMED_FLOOR = 0.05
"""What is no cliff where a map has no A/A pairs, as published data has none. Twice the
largest wobble of the published A100 GEMM plateaus (2.2 %), a sixth of their smallest cliff.
It only keeps cliffs from being claimed: it makes no dim safe."""

NORMAL_95 = 1.96
"""Standard errors on either side that hold 95 % of a normal distribution."""


@dataclass(frozen=True)
class Edge:
    """Latency jumps between two neighbouring dims: see :class:`gacprof.cliffmap.schema.Cliff`."""

    before: int
    after: int
    jump: float
    low: float
    high: float


def envelope(latency: Sequence[float]) -> list[float]:
    """min over d' ≥ d of latency(d'): what each dim could cost, padded to the best larger one."""
    lowest = list(latency)
    for i in range(len(lowest) - 2, -1, -1):
        lowest[i] = min(lowest[i], lowest[i + 1])
    return lowest


def penalty(latency: Sequence[float]) -> list[float]:
    """latency / envelope − 1: the time that padding would recover, as a fraction. Never < 0."""
    return [t / e - 1 for t, e in zip(latency, envelope(latency), strict=True)]


def frontier(d: Sequence[int], latency: Sequence[float], floor: float) -> list[int]:
    """Dims that no larger dim undercuts: the Pareto set of (more width, less time).

    Seen from the largest dim downwards, a dim joins when it is faster by more than the floor
    than the last one that joined. So a plateau is represented by its widest dim, and noise
    on a plateau adds nothing. Every dim returned has a penalty of exactly zero.
    """
    kept: list[int] = []
    last = float("inf")
    for size, t in zip(reversed(d), reversed(latency), strict=True):
        if not kept or t * (1 + floor) < last:
            kept.append(size)
            last = t
    return kept[::-1]


ROUNDING = 1e-6
"""Latencies are kept with six digits: where a device repeats itself exactly, this is the noise."""

FAMILY = 0.003
"""The chance that noise makes any cliff of a curve, all its edges together."""


def edge_quantile(edges: int) -> float:
    """How many standard errors an edge must stand out by, where ``edges`` are looked at.

    Bonferroni's correction of :data:`FAMILY`, two-sided; 4.0 for fifty edges.
    """
    return NormalDist().inv_cdf(1 - FAMILY / 2 / max(edges, 1))


def cliff_floor(error: Sequence[float] | None) -> float:
    """The jump that noise can feign at nearly any edge (95 %) of a curve with these standard
    errors: nothing smaller is called a cliff there, and what is half as large again is found.
    :data:`ASSUMED_FLOOR` where no errors are known."""
    if error is None:
        return ASSUMED_FLOOR
    known = sorted(hypot(a, b) for a, b in pairwise(error) if isfinite(a) and isfinite(b))
    if not known:
        return ASSUMED_FLOOR
    typical = known[int(0.95 * (len(known) - 1))]
    return max(ROUNDING, expm1(edge_quantile(len(error) - 1) * typical))


def edges(
    d: Sequence[int],
    latency: Sequence[float],
    error: Sequence[float] | None,
    looked_at: int | None = None,
    growth: float = 1.0,
) -> list[Edge]:
    """Neighbouring dims between which latency jumps by more than noise and work explain.

    From ``a`` to the next measured dim ``b`` the work grows by ``(b / a) ** growth``, so any
    ratio of latencies between 1 (a plateau) and that (proportional) is no cliff: a coarse
    sweep of a smooth ramp has none. Beyond either end it is one if the excess is more than
    noise feigns: by the ``error`` of both dims (relative standard errors) where known, at any of
    the ``looked_at`` edges (those of the dims given, by default), else :data:`ASSUMED_FLOOR`.
    """
    number = looked_at or len(d) - 1
    errors = error if error is not None else [0.0] * len(d)
    assumed = log1p(ASSUMED_FLOOR) if error is None else 0.0
    entries = list(zip(d, latency, errors, strict=True))
    found = (_edge(a, b, edge_quantile(number), assumed, growth) for a, b in pairwise(entries))
    return [edge for edge in found if edge is not None]


_Entry = tuple[int, float, float]


def _edge(a: _Entry, b: _Entry, quantile: float, assumed: float, growth: float) -> Edge | None:
    (before, t_a, error_a), (after, t_b, error_b) = a, b
    spread = hypot(error_a, error_b)
    ratio, proportional = log(t_b / t_a), growth * log(after / before)
    feigned = max(assumed, quantile * spread, ROUNDING)
    if -feigned <= ratio <= proportional + feigned or not isfinite(spread):
        return None
    wide = NORMAL_95 * spread
    return Edge(before, after, expm1(ratio), expm1(ratio - wide), expm1(ratio + wide))
