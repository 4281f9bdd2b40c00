"""Judge many sizes of a dim by rules at once: the tier of each size, by remainders.

A size's tier is that of its worst use. One array holds the tiers of all sizes from the first one
asked for to the reach above the last, so that the next better one of each is a running minimum from
the end.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gacprof.core.sizes import Cause, Side, SizeVerdict, Use, Verdict
from gacprof.core.verdicts import Bools, Ints, Verdicts
from gacprof.hardware.architectures import ArchitectureTiers
from gacprof.kernels.penalties import worst_estimate

Tiers = NDArray[np.int8]

REACH = 64
"""How far above a size a better one is looked for, in units of a TP rank: alignments repeat."""
HALVES = ("float16", "bfloat16")
GEMV_DTYPES = (*HALVES, "float32", "tf32")
"""Types whose products of one row cuBLAS gives to gemv kernels: 192 of 192 in an A100's trace of
PaLU's decode, odd ranks as fast as even ones (reports/traces.md)."""
NOT_SERVED, UNSHARED = 99, 100
"""Tiers of sizes that no kernel takes, and that TP ranks cannot share: worse than all others."""


def judge_by_tiers(
    gpu: str, table: ArchitectureTiers, uses: Sequence[Use], sizes: Sequence[int]
) -> Verdicts:
    """Return the verdicts on ascending sizes of a dim; there is at least one size and one use."""
    numbers = np.asarray(sizes, int)
    reach = REACH * max(max(use.N.tp, use.K.tp) for use in uses)
    first, count = int(numbers[0]), int(numbers[-1] - numbers[0]) + reach + 1
    worst = np.zeros(count, np.int8)
    for use in uses:
        np.maximum(worst, tiers_of_use(table, use, first, count), out=worst)
    places = numbers - first
    tier, better = worst[places], next_better(worst, reach)[places]
    is_known = (better > 0) | (tier < NOT_SERVED)

    def at(index: int) -> SizeVerdict:
        size = int(numbers[index])
        tiers = [int(tiers_of_use(table, use, size, 1)[0]) for use in uses]
        verdict = verdict_on(size, int(better[index]), table, uses, tiers)
        # else another side holds each larger size back
        if worst[places[index] :].min() <= sum(t.mostly for t in table.tiers[uses[0].dtype]):
            verdict = replace(verdict, estimate=worst_estimate(gpu, uses, size))
        return verdict

    return Verdicts(numbers, is_known, is_known & (better == 0), at)


def tiers_of_use(table: ArchitectureTiers, use: Use, first: int, count: int) -> Tiers:
    """Return the tier of a use at ``count`` sizes of the dim, from ``first`` on."""
    of_dtype = table.tiers[use.dtype]
    n = tiers_of_side(tuple(tier.N for tier in of_dtype), use.N, first, count)
    k = tiers_of_side(tuple(tier.K for tier in of_dtype), use.K, first, count)
    tiers = np.maximum(n, k)
    if is_gemv(use):
        return np.where(tiers == UNSHARED, NOT_SERVED, 0).astype(np.int8)
    if use.dtype in HALVES:
        tiers = tiers + len(of_dtype) * is_unsplit(table, use, first, count)
    return np.minimum(tiers, NOT_SERVED)


def is_gemv(use: Use) -> bool:
    """Return whether a product is one of a matrix and a vector."""
    return use.tokens == 1 and use.dtype in GEMV_DTYPES


@lru_cache(maxsize=64)
def tiers_of_side(multiples: Sequence[int], side: Side, first: int, count: int) -> Tiers:
    """Return a side's tiers at ``count`` sizes: the best one whose multiple its length is."""
    # Tiers repeat with the best one's multiple, which those of the worse ones divide.
    period = multiples[0] * side.tp
    whole = side.others + side.times * np.arange(first, first + min(count, period))
    length, rest = np.divmod(whole, side.tp)
    numbers = np.full(len(whole), NOT_SERVED, np.int8)
    for number, multiple in reversed(list(enumerate(multiples))):
        numbers[length % multiple == 0] = number
    numbers[(rest > 0) | (length <= 0)] = UNSHARED
    return np.resize(numbers, count)


def is_unsplit(table: ArchitectureTiers, use: Use, first: int, count: int) -> Bools | bool:
    """Return whether cuBLAS leaves a long K of little work unsplit, on this table."""

    def k_and_work(sizes: Any) -> tuple[Any, Any]:
        n, k = ((side.others + side.times * sizes) // side.tp for side in (use.N, use.K))
        return k, use.tokens * n * k

    last = first + count - 1
    if table.unsplit_k > k_and_work(last)[0] or table.unsplit_work <= k_and_work(first)[1]:
        return False  # sides grow with the dim: it is so at no size between
    k, work = k_and_work(np.arange(first, last + 1))
    return (k >= table.unsplit_k) & (work < table.unsplit_work)


def next_better(tiers: Tiers, reach: int) -> Ints:
    """Return how far above each size the first one of a lower tier is; 0 where out of reach."""
    places = np.arange(len(tiers), dtype=np.int32)
    distance = np.zeros(len(tiers), np.int32)
    for level in np.flatnonzero(np.bincount(tiers))[1:]:
        lower = np.where(tiers < level, places, np.int32(len(tiers) + reach))
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
        worst, use = max(zip(tiers, uses, strict=True), key=lambda pair: pair[0])
        of_dtype = table.tiers[use.dtype]
        mostly = worst < len(of_dtype) and of_dtype[worst].mostly  # not surely faster
        verdict, cause = "undecided" if mostly else "misaligned", "alignment"
        doubt = f"{size + better} gets better ones" + ", mostly faster" * mostly
    elif not kernel:
        verdict, cause, doubt = "unknown", "unserved", ""
    elif max(tiers) > 0:
        cause, doubt = "other_side", "the product's other side decides its kernel"
    else:
        cause, doubt = "unproven", "whether a larger size is faster only a sweep tells"
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
    worst = (-1, table.one_row)
    for use, tier in zip(uses, tiers, strict=True):
        if is_gemv(use):
            continue
        of_dtype = table.tiers[use.dtype]
        unsplit = "; K not split" if tier >= len(of_dtype) else ""
        worst = max(worst, (tier, f"{of_dtype[tier % len(of_dtype)]}{unsplit}"))
    return worst[1]
