"""What a curve of latency over a dim tells: envelope, penalty, frontier, safe dims, edges.

Pure functions on parallel columns: ``d`` strictly ascending dims, ``latency`` the medians in
microseconds. Nothing here knows of multiples of 8, of kernels, or of GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from statistics import NormalDist, median

SAFE_PENALTY = 0.02
"""A dim is safe up to this penalty even on a quieter device (docs/architecture.md)."""

ASSUMED_FLOOR = 0.05
"""What is no cliff where a map has no A/A pairs, as published data has none. Twice the
largest wobble of the published A100 GEMM plateaus (2.2 %), a sixth of their smallest cliff.
It only keeps cliffs from being claimed: it makes no dim safe."""

Bounds = Sequence[float | None]


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


def cliff_floor(floor: float | None, edges: int) -> float:
    """The jump that none of ``edges`` edges exceeds by noise, in 19 curves out of 20.

    ``floor`` is what 95 % of A/A differences stay within. Looking at many edges, a few differ
    by more, so it is raised as Bonferroni's correction raises a two-sided 5 % bound, taking
    the differences for normal: 1.8 times for a hundred edges, 2.1 times for a thousand.
    """
    if floor is None:
        return ASSUMED_FLOOR
    bound = NormalDist().inv_cdf
    return floor * bound(1 - 0.025 / max(edges, 1)) / bound(0.975)


def resolution(latency: Sequence[float], low: Bounds, high: Bounds) -> float:
    """What two typical medians of these differ by within their own intervals, in 95 % of cases.

    An A/A floor of a dozen pairs may by luck lie below that; no cliff as small can be told.
    Two medians, each known to ± h, differ by less than √2 h. 0 where there are no intervals.
    """
    widths = [
        (b - a) / 2 / t
        for a, t, b in zip(low, latency, high, strict=True)
        if a is not None and b is not None
    ]
    return sqrt(2) * median(widths) if widths else 0.0


def tolerance(floor: float | None) -> float:
    """The penalty up to which a dim is safe: the larger of 2 % and the measured noise floor."""
    return max(SAFE_PENALTY, floor or 0.0)


def safe(d: Sequence[int], latency: Sequence[float], floor: float | None) -> list[int]:
    """Dims whose penalty is within the tolerance."""
    allowed = tolerance(floor)
    return [size for size, p in zip(d, penalty(latency), strict=True) if p <= allowed]


def edges(
    d: Sequence[int],
    latency: Sequence[float],
    low: Bounds,
    high: Bounds,
    floor: float,
    growth: float = 1.0,
) -> list[Edge]:
    """Neighbouring dims between which latency jumps by more than noise and work explain.

    From ``a`` to the next measured dim ``b`` the work grows by ``(b / a) ** growth``, so any
    ratio of latencies between 1 (a plateau) and that (proportional) is no cliff: a coarse
    sweep of a smooth ramp has none. Beyond either end it is one if the excess is more than
    ``floor`` and, where both medians have intervals, if these exclude it too.
    """
    bounds = list(zip(d, latency, low, high, strict=True))
    found = (_edge(a, b, floor, growth) for a, b in pairwise(bounds))
    return [edge for edge in found if edge is not None]


_Entry = tuple[int, float, float | None, float | None]


def _edge(a: _Entry, b: _Entry, floor: float, growth: float) -> Edge | None:
    (before, t_a, low_a, high_a), (after, t_b, low_b, high_b) = a, b
    ratio = t_b / t_a
    lowest = (t_b if low_b is None else low_b) / (t_a if high_a is None else high_a)
    highest = (t_b if high_b is None else high_b) / (t_a if low_a is None else low_a)
    proportional = (after / before) ** growth
    up = ratio / proportional - 1 > floor and lowest > proportional
    down = 1 / ratio - 1 > floor and highest < 1
    if not (up or down):
        return None
    return Edge(before, after, ratio - 1, lowest - 1, highest - 1)
