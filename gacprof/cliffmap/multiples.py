"""The multiple that sizes are best rounded up to, and the cliffs between its multiples.

Vector loads, tensor-core fragments and tiles ask for powers of two, up to the largest tile edge of
cuBLAS and FlashAttention-2 (256).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import expm1, hypot, isfinite, log, log1p

from gacprof.cliffmap.cliffmap import Cliff
from gacprof.cliffmap.judge import INTERVAL_LEVEL, quantile, significant
from gacprof.core.sizes import Interval, SizeVerdict

MULTIPLES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
FEWEST_MULTIPLES = 3
"""A multiple is judged where so many of its multiples were measured."""
WORTH = 0.05
"""A larger multiple leaves a compressor fewer sizes to spend its budget on: it must save this much
more of the time to be worth that (our choice)."""
FAMILY_LEVEL = 0.003
"""The chance that noise makes any cliff of a curve, all its edges together."""
ASSUMED_FLOOR = 0.05
"""A jump that is no cliff where errors are not known, as of published data: twice the largest
wobble of the published A100 GEMM plateaus (2.2 %), a sixth of their smallest cliff."""


def best_multiple(verdicts: Sequence[SizeVerdict]) -> int | None:
    """The smallest multiple than which no larger one saves over :data:`WORTH`, by the mean penalty
    that its multiples surely have. None where too few sizes are decided; 1: rounding gains nothing.
    """
    decided = [v for v in verdicts if v.verdict in ("safe", "misaligned")]
    lows = {v.size: v.penalty.low for v in verdicts if v.penalty is not None}
    left: dict[int, float] = {}
    for multiple in MULTIPLES:
        penalties = [low for size, low in lows.items() if size % multiple == 0]
        if len(penalties) >= FEWEST_MULTIPLES:
            left[multiple] = sum(penalties) / len(penalties)
    if len(decided) < FEWEST_MULTIPLES or not left:
        return None
    enough = min(left.values()) + WORTH
    return min(multiple for multiple, penalty in left.items() if penalty <= enough)


def find_cliffs(
    sizes: Sequence[int],
    log_us: Sequence[float],
    error: Sequence[float],
    degrees: float,
    multiple: int | None,
    kernels: Mapping[int, str],
) -> list[Cliff]:
    """The jumps between neighbouring multiples of ``multiple``; what lies between these is worse.

    From a to b the work grows by b/a at most, so that a growth of latency between none and that is
    no cliff. Beyond either end it is one where it exceeds what noise does to any edge of the curve.
    """
    places = [i for i, size in enumerate(sizes) if size % (multiple or 1) == 0]
    places = [i for i in places if isfinite(error[i])]
    edge = quantile(FAMILY_LEVEL / 2 / max(1, len(places) - 1), degrees)
    half_width = quantile(INTERVAL_LEVEL, degrees)
    cliffs = []
    for i, j in pairwise(places):
        jump, spread = log_us[j] - log_us[i], hypot(error[i], error[j])
        noise = edge * spread if spread else log1p(ASSUMED_FLOOR)
        if -noise <= jump <= log(sizes[j] / sizes[i]) + noise:
            continue
        bounds = [jump - half_width * spread, jump, jump + half_width * spread]
        interval = Interval(*(significant(expm1(bound)) for bound in bounds))
        cliffs.append(Cliff(sizes[i], sizes[j], interval, cause_of(sizes[i], sizes[j], kernels)))
    return cliffs


def cause_of(before: int, after: int, kernels: Mapping[int, str]) -> str:
    """The change of kernel at an edge; empty where kernels are not known."""
    first, second = kernels.get(before, ""), kernels.get(after, "")
    if not first or not second:
        return ""
    return "the same kernel" if first == second else f"{first} → {second}"
