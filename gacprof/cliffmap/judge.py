"""Safe, misaligned or undecided: the one judge of latencies over a dim.

A dim's penalty is its latency over the least latency of any dim at least as large, minus 1: the
time that padding would save. Both are known with an error, so the penalty has an interval, and
the verdict follows from that, never from the estimate alone:

- *safe*: the interval lies at or below the tolerance,
- *misaligned*: it lies above,
- *undecided*: it holds the tolerance. More blocks, or a quieter machine, may decide.

The upper bound needs no correction for the many larger dims: the true best of them is one of
those that the maximum is taken over. The lower bound does, since the fastest-looking of many
noisy dims looks too fast: Bonferroni over the larger dims.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Verdict = Literal["safe", "misaligned", "undecided"]

TOLERANCE = 0.02
"""The penalty that is not worth a change of the model. Noise never raises it."""
LOOKS = 8
"""A sweep looks at a curve after 12, 24, 48 … blocks, this often at most."""
LEVEL = 0.05 / LOOKS
"""The chance of each bound to be wrong at one look, so that it is 5 % over all looks."""


@dataclass(frozen=True)
class Judged:
    """Penalties of ascending dims, as fractions, between ``low`` and ``high``."""

    penalty: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    verdict: tuple[Verdict, ...]


def judge(
    latency_us: Sequence[float] | NDArray[np.float64],
    error: Sequence[float] | NDArray[np.float64] | None = None,
    tolerance: float = TOLERANCE,
    settled: int | None = None,
) -> Judged:
    """Judge dims by their latencies, in ascending order of the dims.

    ``error`` are relative standard errors; without, the latencies are taken as they stand (a
    published curve, whose source gives no spread); a dim of infinite error is undecided. Only the
    first ``settled`` dims have larger ones of every kind beside them: what lies beyond is never
    safe.
    """
    import numpy as np  # only where something is judged: looking dims up needs none

    y = np.log(np.asarray(latency_us, dtype=np.float64))
    e = np.zeros(len(y)) if error is None else np.asarray(error, dtype=np.float64)
    penalty, low, high = np.zeros(len(y)), np.zeros(len(y)), np.zeros(len(y))
    one = NormalDist().inv_cdf(1 - LEVEL)
    for i in range(len(y) - 1):
        gap = y[i] - y[i + 1 :]
        spread = np.sqrt(e[i] ** 2 + e[i + 1 :] ** 2)
        many = NormalDist().inv_cdf(1 - LEVEL / len(gap))
        penalty[i] = max(0.0, float(gap.max()))
        low[i] = max(0.0, float((gap - many * spread).max()))
        high[i] = max(0.0, float((gap + one * spread).max()))
    high[~np.isfinite(e)] = np.inf  # the largest dim's too, which is compared with none
    if settled is not None:
        high[settled:] = np.inf
    penalty, low, high = np.expm1(penalty), np.expm1(low), np.expm1(high)
    verdicts = tuple(verdict_of(a, b, tolerance) for a, b in zip(low, high, strict=True))
    return Judged(penalty, low, high, verdicts)


def verdict_of(low: float, high: float, tolerance: float) -> Verdict:
    """The verdict on a penalty between ``low`` and ``high``."""
    if high <= tolerance:
        return "safe"
    return "misaligned" if low > tolerance else "undecided"
