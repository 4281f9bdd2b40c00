"""Statistics of timings. No assumption about their distribution: order statistics only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache


def median(values: Sequence[float]) -> float:
    """The middle value; the mean of the two middle ones for an even count.

    Raises ``ValueError`` for no values.
    """
    if not values:
        raise ValueError("the median of no values")
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


def median_interval(
    values: Sequence[float], confidence: float = 0.95
) -> tuple[float, float, float]:
    """(low, median, high): the median with its order-statistic confidence interval.

    The interval runs between the k-th smallest and the k-th largest value, with the largest
    k for which a Binomial(n, 1/2) count lies between them with at least ``confidence``
    (David & Nagaraja, *Order Statistics*, §7.1). It needs no normality and holds for any
    continuous distribution. Fewer than six values cannot reach 95 %: then it is their range.
    """
    ordered = sorted(values)
    k = _rank(len(ordered), confidence)
    return ordered[k], median(ordered), ordered[-1 - k]


@lru_cache(maxsize=4096)
def _rank(n: int, confidence: float) -> int:
    """Zero-based k such that P(X_(k) < median < X_(n-1-k)) ≥ confidence, as large as can be."""
    if n == 0:
        raise ValueError("the median of no values")
    tail_allowed = (1 - confidence) / 2 * 2.0**n if n < 1000 else math.inf
    if math.isinf(tail_allowed):  # normal approximation, exact to well under one rank here
        return max(0, int(n / 2 - 1.96 * math.sqrt(n) / 2) - 1)
    tail, k = 0, -1
    while k + 1 <= (n - 1) // 2:
        tail += math.comb(n, k + 1)
        if tail > tail_allowed:
            break
        k += 1
    return max(0, k)
