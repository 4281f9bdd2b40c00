"""Safe, misaligned or undecided: the one judge of latencies over a dim.

A dim's penalty is its latency over the least latency of any dim at least as large, minus 1: how
much longer it takes than the best that it could be padded to. Both are known with an error,
so the penalty has an interval, and the verdict follows from that, never from the estimate alone:

- *safe*: the interval lies at or below the tolerance,
- *misaligned*: it lies above,
- *undecided*: it holds the tolerance. More blocks, or a quieter machine, may decide.

The bounds are Student's, with the smaller of the two dims' degrees of freedom, which is never more
than their difference has (:func:`satterthwaite`). The upper bound needs no correction for the many
larger dims: the true best of them is one of those that the maximum is taken over. The lower bound
does, since the fastest-looking of many noisy dims looks too fast: Bonferroni over the dims of the
curve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import gcd, inf, isinf
from statistics import NormalDist
from typing import TYPE_CHECKING

from gacprof.stats.findings import Period, Verdict

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

TOLERANCE = 0.02
"""The penalty that is not worth a change of the model. Noise never raises it."""
LOOKS = 8
"""A sweep looks at a curve after 12, 24, 48 … blocks, this often at most."""
VERDICT_LEVEL = 0.05 / LOOKS
"""The chance of each bound to be wrong at one look, so that it is 5 % over all looks."""
SURE_LEVEL = 0.00135
"""The chance that one time is wrongly held to be longer than another where a plan rests on it:
three standard errors of a normal distribution. Of 200 factor pairs none is by chance."""


@dataclass(frozen=True)
class Judged:
    """Penalties of ascending dims, as fractions, between ``low`` and ``high``."""

    penalty: Floats
    low: Floats
    high: Floats
    verdict: tuple[Verdict, ...]


def judge(
    latency_us: Sequence[float] | Floats,
    error: Sequence[float] | Floats | None = None,
    tolerance: float = TOLERANCE,
    comparable: Sequence[bool] | None = None,
    degrees: Sequence[float] | Floats | None = None,
) -> Judged:
    """Judge dims by their latencies, in ascending order of the dims.

    ``error`` are relative standard errors and ``degrees`` their degrees of freedom (without, as
    many as count for infinite); without errors the latencies are taken as they stand (a published
    curve, whose source gives no spread). A dim of infinite error is undecided, and no other is
    compared with it. A dim that is not ``comparable`` (:func:`comparable_dims`) is never safe.
    """
    import numpy as np  # only where something is judged: looking dims up needs none

    y = np.log(np.asarray(latency_us, dtype=np.float64))
    e = np.zeros(len(y)) if error is None else np.asarray(error, dtype=np.float64)
    known = np.isfinite(e)
    one = quantiles(VERDICT_LEVEL, degrees, len(y))
    many = quantiles(VERDICT_LEVEL / max(1, int(known.sum()) - 1), degrees, len(y))
    penalty, low, high = np.zeros(len(y)), np.zeros(len(y)), np.zeros(len(y))
    for i in range(len(y) - 1):
        larger = i + 1 + np.flatnonzero(known[i + 1 :])
        if not len(larger):
            break
        apart, spread = y[i] - y[larger], np.hypot(e[i], e[larger])
        penalty[i] = max(0.0, apart.max())
        if known[i]:
            low[i] = max(0.0, (apart - np.maximum(many[i], many[larger]) * spread).max())
            high[i] = max(0.0, (apart + np.maximum(one[i], one[larger]) * spread).max())
    high[~known] = np.inf
    if comparable is not None:
        high[~np.asarray(comparable, dtype=bool)] = np.inf
    penalty, low, high = np.expm1(penalty), np.expm1(low), np.expm1(high)
    verdicts = tuple(verdict_of(a, b, tolerance) for a, b in zip(low, high, strict=True))
    return Judged(penalty, low, high, verdicts)


def quantile(level: float, degrees: float = inf) -> float:
    """How many standard errors are exceeded with the chance ``level``, on one side: Student's, the
    normal's for infinite ``degrees`` of freedom."""
    if isinf(degrees):
        return NormalDist().inv_cdf(1 - level)
    import numpy as np

    from gacprof.stats.student import exceeded

    return float(exceeded(level, np.array([degrees]))[0])


def quantiles(
    level: float, degrees: Sequence[float] | Floats | None, shape: int | tuple[int, ...]
) -> Floats:
    """The :func:`quantile` of each of ``shape`` values, the normal's without ``degrees``. Infinite
    for a value of none."""
    import numpy as np

    found = np.full(shape, quantile(level))
    if degrees is None or np.isinf(degrees).all():
        return found
    from gacprof.stats.student import exceeded

    known = np.asarray(degrees, dtype=np.float64)
    found[known <= 0] = np.inf
    few = np.isfinite(known) & (known > 0)
    found[few] = exceeded(level, known[few])
    return found


def satterthwaite(errors: Sequence[float], degrees: Sequence[float]) -> float:
    """Degrees of freedom of the sum or difference of values with these standard errors (Welch and
    Satterthwaite 1946); those of one value that alone has an error are its own."""
    largest = max(errors)
    if not 0 < largest < inf:
        return inf
    parts = [(e / largest) ** 2 for e in errors]
    share = sum(part**2 / n for part, n in zip(parts, degrees, strict=True) if part)
    return sum(parts) ** 2 / share if share else inf


def known_errors(error: Sequence[float | None]) -> list[float] | None:
    """Errors as :func:`judge` takes them: infinite where one is unknown and others are not."""
    known = any(e is not None for e in error)
    return [inf if e is None else e for e in error] if known else None


ALIGNMENT = 32
"""The widest step of alignment known: AMX takes K in steps of 32 in bf16, GPUs at most 16 elements
(fp8) to a vector load."""
STEPS = (8, 16, ALIGNMENT)


WIDEST_GAP = 1.25
"""A dim further than this ratio (and :data:`ALIGNMENT`) from all others is compared with none, and
between two further apart nothing is filled in. Our choice: the envelope is over larger dims, so a
wider gap may hide one that is 25 % larger and takes less."""


def comparable_dims(d: Sequence[int], period: Period | None = None) -> list[bool]:
    """Which of ascending dims were measured together with what they could be padded to.

    A dim is comparable where the next multiples of 8, 16 and 32 at or above it were measured (of
    those steps that are at most half of it), the next dim of the best class where the curve has a
    ``period``, and another dim within a quarter of it.
    """
    held = set(d)
    best = period.classes[0].remainders if period else []
    return [
        any(_near(d[place], size) for size in d[max(0, place - 1) : place + 2] if size != d[place])
        and all(size + -size % step in held for step in STEPS if 2 * step <= size)
        and (period is None or size + min((r - size) % period.modulus for r in best) in held)
        for place, size in enumerate(d)
    ]


def _near(a: int, b: int) -> bool:
    return abs(a - b) <= ALIGNMENT or max(a, b) <= WIDEST_GAP * min(a, b)


def comparable_sums(
    d: Sequence[int], each: Sequence[tuple[Sequence[bool], bool]], shards: int = 1
) -> list[bool]:
    """Which sizes are comparable where times of several curves are added.

    ``each`` curve says which sizes it compares by itself, and whether it knows that by a period.
    One that does not has no say: the sizes that all curves share decide, each as one of the
    ``shards`` holds it.
    """
    together = comparable_dims([size // shards for size in d])
    return [all(own[i] if known else together[i] for own, known in each) for i in range(len(d))]


def verdict_of(low: float, high: float, tolerance: float) -> Verdict:
    """The verdict on a penalty between ``low`` and ``high``."""
    if high <= tolerance:
        return "safe"
    return "misaligned" if low > tolerance else "undecided"


def finest_step(d: Sequence[int]) -> int:
    """The largest step that visits all these dims: 1 for a dense sweep, 64 for a coarse one."""
    return gcd(*(b - a for a, b in pairwise(d))) or 1
