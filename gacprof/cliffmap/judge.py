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

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, sqrt
from statistics import NormalDist
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gacprof.cliffmap.schema import MapFile, Period

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
    settled: Sequence[bool] | None = None,
) -> Judged:
    """Judge dims by their latencies, in ascending order of the dims.

    ``error`` are relative standard errors; without, the latencies are taken as they stand (a
    published curve, whose source gives no spread); a dim of infinite error is undecided. A dim
    that is not ``settled`` (:func:`settled_dims`) is never safe.
    """
    import numpy as np  # only where something is judged: looking dims up needs none

    y = np.log(np.asarray(latency_us, dtype=np.float64))
    e = np.zeros(len(y)) if error is None else np.asarray(error, dtype=np.float64)
    penalty, low, high = np.zeros(len(y)), np.zeros(len(y)), np.zeros(len(y))
    one = NormalDist().inv_cdf(1 - LEVEL)
    sure: _Dims = []  # the larger dims that can bound a penalty at all
    loose: _Dims = []
    for i in range(len(y) - 2, -1, -1):
        own, spread, after = float(y[i]), float(e[i]), (float(y[i + 1]), float(e[i + 1]))
        sure, loose = _with(sure, *after, 1), _with(loose, *after, -1)
        many = NormalDist().inv_cdf(1 - LEVEL / (len(y) - 1 - i))
        penalty[i] = max(0.0, own - min(other for other, _ in sure))
        low[i] = max(0.0, *(own - a - many * sqrt(spread * spread + b * b) for a, b in sure))
        high[i] = max(0.0, *(own - a + one * sqrt(spread * spread + b * b) for a, b in loose))
    high[~np.isfinite(e)] = np.inf  # the largest dim's too, which is compared with none
    if settled is not None:
        high[~np.asarray(settled, dtype=bool)] = np.inf
    penalty, low, high = np.expm1(penalty), np.expm1(low), np.expm1(high)
    verdicts = tuple(verdict_of(a, b, tolerance) for a, b in zip(low, high, strict=True))
    return Judged(penalty, low, high, verdicts)


def known_errors(error: Sequence[float | None]) -> list[float] | None:
    """Errors as :func:`judge` takes them: infinite where one is unknown and others are not."""
    known = any(e is not None for e in error)
    return [inf if e is None else e for e in error] if known else None


WIDEST_GAP = 1.25
"""Between dims further apart than this ratio a sweep says nothing of what lies between them."""
NEAR = 1.1
"""Over a larger ratio of dims the growth of the work could hide a cliff."""
ALIGNMENT = 32
"""The widest step of alignment known: AMX takes K in steps of 32 in bf16, GPUs at most 16 elements
(fp8) to a vector load."""


def settled_dims(
    d: Sequence[int],
    latency_us: Sequence[float],
    period: Period | None,
    tolerance: float = TOLERANCE,
) -> list[bool]:
    """Which dims have beside them what they could be padded to; ``d`` ascends.

    Dims run out at the end of a curve and before a gap (of more than :data:`WIDEST_GAP` and
    :data:`ALIGNMENT`): there a dim has none, or too few, larger ones to be compared with. Up to
    the end it is settled where the last dim of the period's best class still follows. Where no
    period is known, one must follow that costs no more for its size than those near below it
    (:data:`NEAR`), as the dims just above a step do, and among these must be the last multiple of
    :data:`ALIGNMENT`: others may all be slow alike. A dim by itself, far from all others, is never
    settled.
    """
    found: list[bool] = []
    for end in range(1, len(d) + 1):
        if end < len(d) and d[end] <= max(WIDEST_GAP * d[end - 1], d[end - 1] + ALIGNMENT):
            continue
        first = len(found)
        here = (d[first:end], latency_us[first:end])
        ends = [i for i in range(end - first) if _settles(i, *here, period, tolerance)]
        found += [bool(ends) and i <= ends[-1] for i in range(end - first)]
    return found


def settled_of_sum(
    d: Sequence[int],
    latency_us: Sequence[float],
    each: Sequence[tuple[Sequence[bool], bool]],
    tolerance: float = TOLERANCE,
) -> list[bool]:
    """Which dims are settled where times of several curves are added, to ``latency_us``.

    ``each`` curve says which dims it settles by itself, and whether that is by its period or a
    rule. One that knows no period need not: at a few percent of the sum its noise would leave every
    dim open. The sum then has to settle as a curve without period does (:func:`settled_dims`).
    """
    together = settled_dims(d, latency_us, None, tolerance) if len(each) > 1 else [False] * len(d)
    return [
        all(own[i] or (yes and not known) for own, known in each) for i, yes in enumerate(together)
    ]


def _settles(
    i: int, d: Sequence[int], us: Sequence[float], period: Period | None, tolerance: float
) -> bool:
    """Whether the ``i``-th dim of a stretch without gaps vouches for those up to it."""
    if period is not None:
        return d[i] % period.modulus in period.classes[0].remainders
    aligned = d[i] - d[i] % min(ALIGNMENT, 1 << max(0, d[i].bit_length() - 2))
    there = bisect_left(d, aligned)
    if d[there] != aligned:
        return False
    beside = min(there, bisect_left(d, max(d[i] / NEAR, d[i] - ALIGNMENT)))
    if beside == i and i > 0 and d[i] <= max(NEAR * d[i - 1], d[i - 1] + ALIGNMENT):
        beside = i - 1
    return beside < i and all(
        us[i] <= us[j] * min(d[i] / d[j], NEAR) * (1 + tolerance) for j in range(beside, i)
    )


_Dims = list[tuple[float, float]]
"""Logarithms of latencies with their errors."""


def _with(dims: _Dims, y: float, e: float, sign: int) -> _Dims:
    """The dims and another one, without those that a faster one of at most the same error (``sign``
    1), or of at least the same (-1), makes superfluous. They are few."""
    if any(a <= y and sign * b <= sign * e for a, b in dims):
        return dims
    return [*((a, b) for a, b in dims if a < y or sign * b < sign * e), (y, e)]


def verdict_of(low: float, high: float, tolerance: float) -> Verdict:
    """The verdict on a penalty between ``low`` and ``high``."""
    if high <= tolerance:
        return "safe"
    return "misaligned" if low > tolerance else "undecided"


MOST_FLOOR = 0.1
"""Above this A/A floor the differences between dims are lost in those of one point."""
WIDE = 5
"""An undecided dim whose penalty is bounded within so many tolerances is nearly decided."""
MOST_WIDE = 0.5
"""The share of dims, undecided and wide, from which a map can judge little."""


def too_noisy(file: MapFile) -> str:
    """Why the map cannot be judged by; empty where it can.

    Its A/A floor is above :data:`MOST_FLOOR`, or more than :data:`MOST_WIDE` of its dims are
    undecided with a bound above :data:`WIDE` tolerances. Dims that are not settled
    do not count: no quieter sweep would decide them.
    """
    reasons = []
    floor = file.noise.floor
    if floor is not None and floor > MOST_FLOOR:
        reasons.append(f"its A/A floor is {floor:.1%}, above {MOST_FLOOR:.0%}")
    bounds = [
        (verdict, high, WIDE * curve.tolerance)
        for curve in file.curves
        for d, verdict, high in zip(
            curve.points.d, curve.verdicts, curve.points.penalty_high, strict=True
        )
        if curve.coverage.settles(d)
    ]
    wide = sum(v == "undecided" and (high is None or high > most) for v, high, most in bounds)
    if wide > MOST_WIDE * len(bounds):
        reasons.append(
            f"{wide} of {len(bounds)} dims are undecided with penalties of up to more than "
            f"{WIDE} tolerances"
        )
    return " and ".join(reasons)
