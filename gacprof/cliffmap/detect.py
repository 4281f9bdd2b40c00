"""What a curve of latency over a dim says: envelope, penalty, frontier, edges; steps, residues.

Pure functions on parallel columns: ``d`` strictly ascending dims, ``latency`` in microseconds.
Nothing here knows of multiples of 8, of kernels, or of GPUs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from math import expm1, gcd, hypot, isfinite, log, log1p
from statistics import NormalDist

from gacprof.cliffmap.schema import Cliff

ASSUMED_FLOOR = 0.05
"""What is no cliff where a map has no A/A pairs, as published data has none. Twice the
largest wobble of the published A100 GEMM plateaus (2.2 %), a sixth of their smallest cliff.
It only keeps cliffs from being claimed: it makes no dim safe."""

NORMAL_95 = 1.96
"""Standard errors on either side that hold 95 % of a normal distribution."""

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


def frontier_of(
    d: Sequence[int],
    latency_us: Sequence[float],
    settled: Sequence[bool],
    verdict: Sequence[str],
    floor: float,
) -> list[int]:
    """The :func:`frontier` of the settled dims, without misaligned ones."""
    sure = [i for i, yes in enumerate(settled) if yes]
    found = frontier([d[i] for i in sure], [latency_us[i] for i in sure], floor)
    misaligned = {size for size, v in zip(d, verdict, strict=True) if v == "misaligned"}
    return [size for size in found if size not in misaligned]


def edge_quantile(edges: int) -> float:
    """How many standard errors an edge must stand out by, where ``edges`` are looked at.

    Bonferroni's correction of :data:`FAMILY`, two-sided; 4.0 for fifty edges.
    """
    return NormalDist().inv_cdf(1 - FAMILY / 2 / max(edges, 1))


def cliff_floor(error: Sequence[float] | None) -> float:
    """The jump that noise can feign at any edge of a curve with these standard errors: what is
    half as large again is found wherever it is. :data:`ASSUMED_FLOOR` where no errors are known."""
    known = [hypot(a, b) for a, b in pairwise(error or ()) if isfinite(a) and isfinite(b)]
    if error is None or not known:
        return ASSUMED_FLOOR
    return max(ROUNDING, expm1(edge_quantile(len(error) - 1) * max(known)))


def edges(
    d: Sequence[int],
    latency: Sequence[float],
    error: Sequence[float] | None,
    looked_at: int | None = None,
) -> list[Cliff]:
    """Neighbouring dims between which latency jumps by more than noise and work explain.

    From ``a`` to the next measured dim ``b`` the work grows by ``b / a``, so any ratio of latencies
    between 1 (a plateau) and that (proportional) is no cliff: a coarse sweep of a smooth ramp has
    none. Beyond either end it is one if the excess is more than noise feigns: by the ``error`` of
    both dims (relative standard errors) where known, at any of the ``looked_at`` edges (those of
    the dims given, by default), else :data:`ASSUMED_FLOOR`.
    """
    quantile = edge_quantile(looked_at or len(d) - 1)
    errors = [0.0] * len(d) if error is None else error
    least = log1p(ASSUMED_FLOOR) if error is None else ROUNDING
    found = []
    columns = zip(d, latency, errors, strict=True)
    for (a, t_a, error_a), (b, t_b, error_b) in pairwise(columns):
        spread, ratio = hypot(error_a, error_b), log(t_b / t_a)
        feigned = max(least, quantile * spread)
        if not isfinite(spread) or -feigned <= ratio <= log(b / a) + feigned:
            continue
        jump, low, high = (
            round(expm1(ratio + side * NORMAL_95 * spread), 4) for side in (0, -1, 1)
        )
        found.append(Cliff(before=a, after=b, jump=jump, low=low, high=high))
    return found


def finest_step(d: Sequence[int]) -> int:
    """The largest step that visits all these dims: 1 for a dense sweep, 64 for a coarse one."""
    return gcd(*(b - a for a, b in pairwise(d))) or 1


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
