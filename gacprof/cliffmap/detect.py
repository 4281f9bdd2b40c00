"""What a curve of latency over a dim says: envelope, penalty, frontier, edges; steps, residues.

Pure functions on parallel columns: ``d`` strictly ascending dims, ``latency`` in microseconds.
Nothing here knows of multiples of 8, of kernels, or of GPUs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from math import expm1, hypot, inf, isfinite, log, log1p
from statistics import median
from typing import NamedTuple

from gacprof.cliffmap.schema import Cliff
from gacprof.stats.judge import quantiles, satterthwaite

ASSUMED_FLOOR = 0.05
"""What is no cliff where a map has no A/A pairs, as published data has none. Twice the
largest wobble of the published A100 GEMM plateaus (2.2 %), a sixth of their smallest cliff.
It only keeps cliffs from being claimed: it makes no dim safe."""

ROUNDING = 1e-6
"""Latencies are kept with six digits: where a device repeats itself exactly, this is the noise."""

FAMILY = 0.003
"""The chance that noise makes any cliff of a curve, all its edges together."""


def envelope(latency: Sequence[float]) -> list[float]:
    """min over d' ≥ d of latency(d'): what each dim could cost, padded to the best larger one."""
    lowest = list(latency)
    for i in range(len(lowest) - 2, -1, -1):
        lowest[i] = min(lowest[i], lowest[i + 1])
    return lowest


def penalty(latency: Sequence[float]) -> list[float]:
    """latency / envelope − 1: how much longer a dim takes than the best it could be padded to."""
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


def frontier_of(
    d: Sequence[int],
    latency_us: Sequence[float],
    comparable: Sequence[bool],
    verdict: Sequence[str],
    floor: float,
) -> list[int]:
    """The :func:`frontier` of the comparable dims, without misaligned ones."""
    sure = [i for i, yes in enumerate(comparable) if yes]
    found = frontier([d[i] for i in sure], [latency_us[i] for i in sure], floor)
    misaligned = {size for size, v in zip(d, verdict, strict=True) if v == "misaligned"}
    return [size for size in found if size not in misaligned]


def cliff_floor(error: Sequence[float] | None, degrees: Sequence[float] | None = None) -> float:
    """The jump that noise can cause at a usual edge of a curve (the median): of jumps twice as
    large 95 % are found. :data:`ASSUMED_FLOOR` where no errors are known."""
    floors = [edge.floor for edge in _edges_of(error or (), degrees, len(error or ()) - 1)]
    known = [floor for floor in floors if isfinite(floor)]
    return expm1(median(known)) if known else ASSUMED_FLOOR


def edges(
    d: Sequence[int],
    latency: Sequence[float],
    error: Sequence[float] | None,
    looked_at: int | None = None,
    degrees: Sequence[float] | None = None,
) -> list[Cliff]:
    """Neighbouring dims between which latency jumps by more than noise and work explain.

    From ``a`` to the next measured dim ``b`` the work grows by ``b / a``, so any ratio of latencies
    between 1 (a plateau) and that (proportional) is no cliff: a coarse sweep of a smooth ramp has
    none. Beyond either end it is one if the excess is more than noise causes at that edge, at
    :data:`FAMILY` for the ``looked_at`` edges together (those of the dims given, by default);
    or than :data:`ASSUMED_FLOOR` where the ``error`` of the dims is not known.
    """
    noise = _edges_of(error or [0.0] * len(d), degrees, looked_at or len(d) - 1)
    found = []
    for (a, b), (t_a, t_b), edge in zip(pairwise(d), pairwise(latency), noise, strict=True):
        ratio = log(t_b / t_a)
        by_noise = log1p(ASSUMED_FLOOR) if error is None else edge.floor
        if not isfinite(by_noise) or -by_noise <= ratio <= log(b / a) + by_noise:
            continue
        jump, low, high = (round(expm1(ratio + side * edge.half), 4) for side in (0, -1, 1))
        found.append(Cliff(before=a, after=b, jump=jump, low=low, high=high))
    return found


class _Edge(NamedTuple):
    """The jump (log) that noise can cause between two neighbours, and half the width of its 95 %
    interval; infinite where an error is unknown."""

    floor: float
    half: float


def _edges_of(
    error: Sequence[float], degrees: Sequence[float] | None, looked_at: int
) -> list[_Edge]:
    """By Student's t with Satterthwaite's degrees of freedom, Bonferroni over all edges."""
    spread = [hypot(*pair) for pair in pairwise(error)]
    together = None
    if degrees is not None:
        pairs = zip(pairwise(error), pairwise(degrees), strict=True)
        together = [satterthwaite(*pair) for pair in pairs]
    family = quantiles(FAMILY / 2 / max(1, looked_at), together, len(spread)).tolist()
    each = quantiles(0.025, together, len(spread)).tolist()
    return [
        _Edge(max(ROUNDING, q * s), t * s) if isfinite(s) else _Edge(inf, inf)
        for q, t, s in zip(family, each, spread, strict=True)
    ]


def label(axis: str, modulus: int, remainders: Collection[int]) -> str:
    """The shortest description of a residue class: one residue (``K % 16 = 0``), all but one,
    a difference (``K % 2 = 0, K % 8 ≠ 0``), or a list."""
    wanted = {r % modulus for r in remainders}
    if len(wanted) == modulus:
        return f"all {axis}"
    divisors = [m for m in range(2, modulus + 1) if modulus % m == 0]
    single = {(m, r): set(range(r, modulus, m)) for m in divisors for r in range(m)}
    for (m, r), members in single.items():
        if wanted == members:
            return f"{axis} % {m} = {r}"
    for (m, r), members in single.items():
        if wanted == set(range(modulus)) - members:
            return f"{axis} % {m} ≠ {r}"
    for m, n in ((m, n) for m in divisors for n in divisors if n > m and n % m == 0):
        if wanted == single[m, 0] - single[n, 0]:
            return f"{axis} % {m} = 0, {axis} % {n} ≠ 0"
    listed = ", ".join(str(r) for r in sorted(wanted))
    return f"{axis} % {modulus} in {listed}"
