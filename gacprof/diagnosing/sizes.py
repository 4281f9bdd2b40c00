"""Verdicts on the sizes of a model's dims, each beside the sizes of the dims that it meets.

A rank of 131 and a width of 683 are N and K of one product, and PaLU's groups add up on one side of
theirs: such dims are *coupled*. Beside an odd dim no size of the other is fast, so that each hides
what the other costs. So a dim is judged beside padded coupled dims, too.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from gacprof.checkpoint.inventory import Dim, Module, NewSizes
from gacprof.core.sizes import Gemm, Side, SizeSource, SizeVerdict, Use, Verdict, seems_safe
from gacprof.workload.products import AS_STORED, PADDED_TO, Products, padded_neighbours

if TYPE_CHECKING:
    from gacprof.core.verdicts import Bools, Verdicts

WINDOW = 0.25  # how far from a dim's size other sizes are looked for, as a fraction of it
LEAST_REACH = 32
"""At least this many sizes either way: small dims, too, have another tile beside them (AMX: 32)."""

WORST_LAST: Sequence[Verdict] = ("safe", "undecided", "misaligned", "unknown")


def window_of(size: int, window: float = WINDOW) -> tuple[int, int]:
    """Return the first and the last size within ``window`` (a fraction) of a size."""
    reach = max(LEAST_REACH, round(size * window))
    return max(1, size - reach), size + reach


@dataclass(frozen=True)
class Judged:
    """Verdicts on all sizes from ``first`` to ``last`` that a source lists, and on some others."""

    first: int
    last: int
    verdicts: Verdicts
    is_listed: Bools

    def of_range(self, low: int, high: int, dim_size: int) -> Verdicts:
        """Return the verdicts on the listed sizes within [low, high] and on a dim's own."""
        sizes = self.verdicts.sizes
        is_in_range = (low <= sizes) & (sizes <= high) & self.is_listed
        return self.verdicts.where(is_in_range | (sizes == dim_size))


@dataclass(frozen=True)
class SizeTable:
    """A source's verdicts on the dims of one model. Dims whose uses are equal but for the weights'
    names are judged together, in a range around the sizes asked for."""

    products: Products
    source: SizeSource
    times: dict[object, dict[int, float]] = field(default_factory=dict)  # by product, then shape
    _judged: dict[object, list[Judged]] = field(default_factory=dict)

    def verdicts(self, dim: Dim, low: int, high: int, sizes: NewSizes = AS_STORED) -> Verdicts:
        """Return the verdicts on a dim's own size and on those within [low, high] that the source
        knows, where other dims have these ``sizes``; none for a dim that feeds no product."""
        uses, judged_of_uses = self._uses_of(dim, sizes)
        first, last = min(low, dim.size), max(high, dim.size)
        for answer in judged_of_uses:
            if answer.first <= first and last <= answer.last:
                return answer.of_range(low, high, dim.size)
        # Similar dims ask for similar ranges: rounded to eighths, most are equal and judged once.
        step = max(1, (1 << last.bit_length()) // 8)
        first, last = max(1, first // step * step), -(-last // step) * step
        listed = self.source.sizes(uses, first, last) if uses else ()
        judged_of_uses.append(self._judge(uses, first, last, listed, self._stored(first, last)))
        return judged_of_uses[-1].of_range(low, high, dim.size)

    def verdict(self, dim: Dim, size: int, sizes: NewSizes = AS_STORED) -> SizeVerdict:
        """Return the verdict on one size where other dims have these ``sizes``."""
        uses, judged_of_uses = self._uses_of(dim, sizes)
        if not uses:
            reason = f"no product of {dim.name} is known"
            return SizeVerdict(size, "unknown", reason=reason, cause="not_measured")
        for answer in judged_of_uses:
            verdict = answer.verdicts.of(size)
            if verdict is not None:
                return verdict
        sizes_around = {size, *self._stored(*window_of(size))}
        judged_of_uses.append(self._judge(uses, size, size, (), sizes_around))
        verdict = judged_of_uses[-1].verdicts.of(size)
        assert verdict is not None
        return verdict

    def _stored(self, first: int, last: int) -> Sequence[int]:
        """Return the sizes that dims have within [first, last]: dims of equal uses will ask for
        theirs."""
        return self._sizes[bisect_left(self._sizes, first) : bisect_right(self._sizes, last)]

    @cached_property
    def _sizes(self) -> Sequence[int]:
        return sorted({dim.size for dim in self.products.inventory.dims})

    def _uses_of(self, dim: Dim, sizes: NewSizes) -> tuple[list[Use], list[Judged]]:
        """Return the dim's uses, and what was judged for equal ones."""
        uses = self.products.uses_of(dim, sizes)
        shapes = tuple((u.N, u.K, u.gemm.bias, u.tokens, u.dtype, u.weight) for u in uses)
        return uses, self._judged.setdefault(shapes, [])

    def _judge(
        self, uses: list[Use], first: int, last: int, listed: Sequence[int], others: Iterable[int]
    ) -> Judged:
        """Return the verdicts on sizes that the source lists, and on others."""
        import numpy as np

        from gacprof.core.verdicts import as_verdicts

        numbers = sorted({*listed, *others}) if uses else []
        answer = self.source.judge(uses, numbers) if uses else ()
        verdicts = as_verdicts(answer, self.source.tolerance)
        return Judged(first, last, verdicts, np.isin(numbers, np.asarray(listed)))

    def beside_padded(self, dim: Dim, low: int, high: int, sizes: NewSizes = AS_STORED) -> Verdicts:
        """Return the verdicts beside the coupled dims of these ``sizes``, padded to the first of
        :data:`PADDED_TO` at which the source knows any; else beside them as they are."""
        for multiple in PADDED_TO:
            neighbours = padded_neighbours(self.products.inventory, dim, multiple, sizes)
            verdicts = self.verdicts(dim, low, high, {**sizes, **neighbours})
            if verdicts.is_known.any():
                return verdicts
        return self.verdicts(dim, low, high, sizes)

    def is_merged_faster(self, dim: Dim, size: int | None) -> bool:
        """Return whether dense products are surely faster than the factor pairs of a rank of this
        size."""
        if not self.products.inventory.is_mergeable(dim):
            return False
        modules = self.products.inventory.modules_of[dim.name]
        pair = self.products.time_us(self.source, modules, {dim.name: size})
        dense = self.products.time_us(self.source, modules, {dim.name: None})
        return pair is not None and dense is not None and dense.high < pair.low

    def merged_verdict(self, dim: Dim, sizes: NewSizes) -> Verdict:
        """Return the worse of the verdicts on N and K of the dense products in place of a merged
        rank."""
        verdicts: list[Verdict] = []
        for module in self.products.inventory.modules_of[dim.name]:
            (gemm,) = self.products.gemms(module, {**sizes, dim.name: None})
            rows = self.products.rows_of(module)
            if not rows:
                return "unknown"
            for axis, use in uses_by_axis(self.products, module, gemm, 0, 1).items():
                uses = [replace(use, tokens=m, weight=weight) for m, weight in rows.items()]
                size = {"N": gemm.N, "K": gemm.K}[axis]
                verdicts.append(self.source.judge(uses, [size])[0].verdict)
        return max(verdicts, key=WORST_LAST.index, default="unknown")


def uses_by_axis(
    products: Products, module: Module, gemm: Gemm, index: int, count: int
) -> dict[Literal["N", "K"], Use]:
    """Return the uses, at one row, of dims that are N and K of the ``index``-th of ``count``
    products."""
    n_tp, k_tp = products.shares(module, index, count)
    n, k = Side(gemm.N, 0, n_tp), Side(gemm.K, 0, k_tp)
    shape, dtype = Gemm("", gemm.N, gemm.K, gemm.bias), products.dtype_of(module)
    return {
        "N": Use(shape, Side(0, 1, n_tp), k, 1, dtype),
        "K": Use(shape, n, Side(0, 1, k_tp), 1, dtype),
    }


def better_size(verdicts: Iterable[SizeVerdict], size: int, tolerance: float) -> SizeVerdict | None:
    """Return the verdict on the smallest larger size that seems safe."""
    larger = [v for v in verdicts if v.size > size and seems_safe(v, tolerance)]
    return min(larger, key=lambda v: v.size, default=None)
