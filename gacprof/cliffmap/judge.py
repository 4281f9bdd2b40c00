"""Call sizes safe, misaligned or undecided: the only place where a measured size is called safe.

A size's penalty is its latency over the lowest latency of any size at least as large, minus 1. Both
latencies have errors, so the penalty has an interval: the size is *safe* where it lies at or below
the tolerance, *misaligned* where it lies above, and *undecided* where it holds the tolerance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import exp, expm1, hypot, inf, isinf
from statistics import NormalDist

from gacprof.core.sizes import Cause, Interval, SizeVerdict, Verdict

CHECKS = 8  # a sweep judges a curve after 12, 24, 48 … blocks, this often at most
VERDICT_LEVEL = 0.05 / CHECKS  # chance of each bound to be wrong at one check: 5 % over all
INTERVAL_LEVEL = 0.025  # on either side of a latency's 95 % interval

# What the next larger kernel or vector load may ask for: 16 bytes of a 16-bit type, of an 8-bit
# type, and AMX's 32 elements of K in bfloat16.
VECTOR_STEPS = (8, 16, 32)
WIDEST_GAP = 1.25  # by a larger ratio than this, sizes are too far apart to be compared

NOT_MEASURED = "too few undisturbed blocks or processes, or the sweep did not end: go on with it"
NOT_COMPARABLE = "the sizes that it could be padded to were not all measured"
CAUSES: Mapping[Verdict, Cause] = {"safe": "", "misaligned": "slower", "undecided": "noise"}


def quantile(level: float, degrees: float = inf) -> float:
    """Return how many standard errors are exceeded with the chance ``level`` on one side."""
    if isinf(degrees):  # Student's t is normal then, and scipy's import is saved
        return NormalDist().inv_cdf(1 - level)
    from scipy.special import stdtrit

    return float(-stdtrit(degrees, level))


def judge_sizes(
    sizes: Sequence[int],
    log_us: Sequence[float],
    error: Sequence[float],
    tolerance: float,
    degrees: float = inf,
    tp: int = 1,
) -> list[SizeVerdict]:
    """Judge ascending ``sizes``, which ``tp`` TP ranks share. ``log_us`` are log latencies,
    ``error`` their standard errors (0: exact, infinite: unknown), with ``degrees`` of freedom for
    Student's t. A size that is not :func:`comparable` is never safe."""
    measured = [i for i, spread in enumerate(error) if not isinf(spread)]
    verdicts = [
        SizeVerdict(size, "undecided", reason=NOT_MEASURED, cause="not_measured") for size in sizes
    ]
    compared = comparable([sizes[i] // tp for i in measured])
    # The best larger size is among those that the maximum is taken over: its upper bound needs no
    # correction. The fastest-looking of many noisy sizes looks too fast: Bonferroni for the lower.
    upper = quantile(VERDICT_LEVEL, degrees)
    lower = quantile(VERDICT_LEVEL / max(1, len(measured) - 1), degrees)
    half_width = quantile(INTERVAL_LEVEL, degrees)
    for place, i in enumerate(measured):
        low = value = high = 0.0
        for j in measured[place + 1 :]:
            gap, spread = log_us[i] - log_us[j], hypot(error[i], error[j])
            low = max(low, gap - lower * spread)
            value = max(value, gap)
            high = max(high, gap + upper * spread)
        # Rounded as in the file: a map's verdicts agree with its intervals to the last digit.
        penalty = Interval(*(significant(expm1(bound)) for bound in (low, value, high)))
        verdict = verdict_of(penalty, tolerance)
        cause, reason = CAUSES[verdict], "" if compared[place] else NOT_COMPARABLE
        if reason and verdict != "misaligned":  # a lower bound proves only misaligned
            verdict, cause = "undecided", "not_comparable"
        half = half_width * error[i]
        latency = Interval(*(significant(exp(log_us[i] + side * half)) for side in (-1, 0, 1)))
        verdicts[i] = SizeVerdict(sizes[i], verdict, penalty, latency, reason, cause=cause)
    return verdicts


def verdict_of(penalty: Interval, tolerance: float) -> Verdict:
    """Return the verdict on a penalty by its interval."""
    if penalty.high <= tolerance:
        return "safe"
    return "misaligned" if penalty.low > tolerance else "undecided"


def is_supported(verdict: SizeVerdict, tolerance: float) -> bool:
    """Return whether a latency is a time, and whether the penalty supports a decided verdict."""
    borne_out = verdict_of(verdict.penalty or Interval(0.0, 0.0, inf), tolerance)
    is_time = verdict.latency_us is None or 0 < verdict.latency_us.low < inf
    return is_time and verdict.verdict in (borne_out, "undecided", "unknown")


def comparable(sizes: Sequence[int]) -> list[bool]:
    """Return for each of ascending sizes whether those that it could be padded to were measured:
    the next multiples of 8, 16 and 32, and any other size within a quarter of it."""
    close = set()
    for size, larger in pairwise(sizes):
        if larger - size <= VECTOR_STEPS[-1] or larger <= WIDEST_GAP * size:
            close |= {size, larger}
    answers, measured = [], set(sizes)
    for size in sizes:
        # A step of over half of the size would multiply it: no padding.
        padded = {size + -size % step for step in VECTOR_STEPS if 2 * step <= size}
        answers.append(size in close and padded <= measured)
    return answers


def significant(value: float) -> float:
    """Round to six digits."""
    return float(f"{value:.6g}")  # far below any timer's resolution, and half a map's bytes
