"""Verdicts by rules on many sizes of a dim at once: the tier of each size, by remainders.

A size's tier is that of its worst use. One array holds the tiers of all sizes from the first asked
to the reach above the last, so that the next better one of each is a running minimum from the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gacprof.core.sizes import Cause, Side, SizeVerdict, Use, Verdict
from gacprof.core.verdicts import Bools, Ints, Verdicts

if TYPE_CHECKING:
    from gacprof.gpus.architectures import ArchitectureTiers

Tiers = NDArray[np.int8]

REACH = 64
"""How far above a size a better one is looked for, in units of one TP rank: alignments repeat
earlier."""
FEW_ROWS = 16
"""Products of at most so many rows are bound by loads and launches: 5 to 15 % of the aligned sizes
that were measured lose more than 2 % to a larger one, with more rows than 256 1 to 6 %
(aiconfigurator-core 0.12.0, A100 and H100)."""
HALVES = ("float16", "bfloat16")
NOT_SERVED, UNSHARED = 99, 100
"""The tiers of what no kernel takes, and of what TP ranks cannot share: worse than all others."""


def judge_by_tiers(table: ArchitectureTiers, uses: Sequence[Use], sizes: Sequence[int]) -> Verdicts:
    """Return the verdicts on ascending sizes of a dim, of which there is one, as there is a use."""
    numbers = np.asarray(sizes, int)
    reach = REACH * max(max(use.N.tp, use.K.tp) for use in uses)
    worst = tiers_of_uses(table, uses, np.arange(numbers[0], numbers[-1] + reach + 1)).max(0)
    places = numbers - numbers[0]
    tier, better = worst[places], next_better(worst, reach)[places]
    is_known = (better > 0) | (tier < NOT_SERVED)

    def at(index: int) -> SizeVerdict:
        tiers = tiers_of_uses(table, uses, numbers[[index]])[:, 0].tolist()
        return verdict_on(int(numbers[index]), int(better[index]), table, uses, tiers)

    return Verdicts(numbers, is_known, is_known & (better == 0), at)


def tiers_of_uses(table: ArchitectureTiers, uses: Sequence[Use], sizes: Ints) -> Tiers:
    """Return the tier of each use, a row, at each of these sizes of the dim."""
    side_tiers = cache(lambda side, dtype: tiers_of_side(table, side, dtype, sizes))
    rows = np.empty((len(uses), len(sizes)), np.int8)
    for row, use in zip(rows, uses, strict=True):
        n, k = side_tiers(use.N, use.dtype), side_tiers(use.K, use.dtype)
        is_half = use.dtype in HALVES
        if is_half and use.tokens == 1:  # one row of y is not stored in rows: any N will do
            n = np.where(n == UNSHARED, n, 0)
        row[:] = np.maximum(n, k)
        if is_half and use.tokens > 1:
            row += len(table.tiers[use.dtype]) * is_unsplit(table, use, sizes)
    return np.minimum(rows, NOT_SERVED)


def tiers_of_side(table: ArchitectureTiers, side: Side, dtype: str, sizes: Ints) -> Tiers:
    """Return the best tier whose multiple a side's length has; one entry where it is fixed."""
    whole = side.others + side.times * (sizes if side.times else sizes[:1])
    length, rest = np.divmod(whole, side.tp)
    tiers = np.full(len(whole), NOT_SERVED, np.int8)
    for number, tier in reversed(list(enumerate(table.tiers[dtype]))):
        tiers[length % tier.multiple == 0] = number
    tiers[(rest > 0) | (length <= 0)] = UNSHARED
    return tiers


def is_unsplit(table: ArchitectureTiers, use: Use, sizes: Ints) -> Bools:
    """Return whether cuBLAS leaves a long K of little work unsplit, on this table."""
    n, k = ((side.others + side.times * sizes) // side.tp for side in (use.N, use.K))
    return (k >= table.unsplit_k) & (use.tokens * n * k < table.unsplit_work)


def next_better(tiers: Tiers, reach: int) -> Ints:
    """Return how far above each place the first of a lower tier is; 0 where none is in reach."""
    places = np.arange(len(tiers))
    distance = np.zeros(len(tiers), int)
    for level in np.unique(tiers)[1:]:
        lower = np.where(tiers < level, places, len(tiers) + reach)
        first = np.minimum.accumulate(lower[::-1])[::-1]
        distance = np.where(tiers == level, first - places, distance)
    return np.where(distance <= reach, distance, 0)


def verdict_on(
    size: int,
    better: int,
    table: ArchitectureTiers,
    uses: Sequence[Use],
    tiers: Sequence[int],
) -> SizeVerdict:
    """Return the verdict on one size in words. ``tiers`` are those of its uses, and ``better`` is
    how far above it the next size of a better tier is, or 0."""
    unserved = why_unserved(uses, tiers, size)
    kernel = "" if unserved else worst_kernel(table, uses, tiers)
    verdict: Verdict = "undecided"
    cause: Cause
    if better:
        verdict, cause, doubt = "misaligned", "alignment", f"{size + better} is of a better tier"
    elif not kernel:
        verdict, cause, doubt = "unknown", "unserved", ""
    elif max(tiers) > 0:
        cause, doubt = "other_side", "another side holds it there"
    else:
        cause, doubt = doubt_of(table, uses, size)
        verdict = "undecided" if doubt else "safe"
    reason = "; ".join(filter(None, (unserved or kernel, doubt)))
    return SizeVerdict(size, verdict, reason=reason, kernel=kernel, cause=cause)


def why_unserved(uses: Sequence[Use], tiers: Sequence[int], size: int) -> str:
    """Return why no kernel serves one of the uses; empty where all are served."""
    for use, tier in zip(uses, tiers, strict=True):
        lengths = use.at(size)
        if lengths is None:
            return f"TP ranks cannot share {size} evenly"
        if tier == NOT_SERVED:
            return f"no kernel serves N={lengths[0]}, K={lengths[1]} in {use.dtype}"
    return ""


def worst_kernel(table: ArchitectureTiers, uses: Sequence[Use], tiers: Sequence[int]) -> str:
    """Return the kernels of the worst of the uses."""
    worst = (-1, "")
    for use, tier in zip(uses, tiers, strict=True):
        of_dtype = table.tiers[use.dtype]
        unsplit = "; K not split" if tier >= len(of_dtype) else ""
        worst = max(worst, (tier, f"{of_dtype[tier % len(of_dtype)]}{unsplit}"))
    return worst[1]


def doubt_of(table: ArchitectureTiers, uses: Sequence[Use], size: int) -> tuple[Cause, str]:
    """Return why a size of the best tier is not safe; empty where it is."""
    if max(use.tokens for use in uses) <= FEW_ROWS:
        return "few_rows", f"at most {FEW_ROWS} tokens: bound by loads and launches"
    for use in uses:
        multiple = table.sure[use.dtype]
        lengths = [side.at(size) for side in (use.N, use.K) if side.times]
        if any(length is not None and length % multiple for length in lengths):
            return "unproven", f"whether a multiple of {multiple} is served better is not known"
    return "", ""
