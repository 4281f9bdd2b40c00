"""Verdicts on the sizes of a model's dims, each beside the sizes of the dims that it meets.

A rank of 131 and a width of 683 are N and K of one product, and PaLU's groups add up on one side
of theirs: such dims are *coupled*. Beside an odd one no size of the other is fast, and each looks
as good as it can be. So a dim is judged with its coupled dims padded, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gacprof.checkpoint.inventory import Dim, NewSizes
from gacprof.checkpoint.products import AS_STORED, PADDED_TO, Products, padded_neighbours
from gacprof.core.points import MAX_DIM
from gacprof.core.sizes import Side, SizeSource, SizeVerdict, Use, Verdict, seems_safe

if TYPE_CHECKING:
    from gacprof.core.verdicts import Verdicts

WINDOW = 0.25
"""How far from a dim's size other sizes are looked for, as a fraction of it."""
LEAST_REACH = 32
"""The same in sizes, at least: a small dim has another tile beside it too (AMX's K of 32, say)."""


def window_of(size: int, window: float = WINDOW) -> tuple[int, int]:
    """The first and the last size within ``window`` (a fraction) of a size."""
    reach = max(LEAST_REACH, round(size * window))
    return max(1, size - reach), size + reach


@dataclass(frozen=True)
class SizeTable:
    """A source's verdicts on the dims of one model. Uses equal but for the names of the weights are
    judged once."""

    products: Products
    source: SizeSource
    _judged: dict[object, dict[tuple[int, ...], Verdicts]] = field(default_factory=dict)

    def verdicts(self, dim: Dim, low: int, high: int, sizes: NewSizes = AS_STORED) -> Verdicts:
        """The verdicts on a dim's own size and those within [low, high] that the source knows,
        where other dims have these ``sizes``; none of a dim that feeds no product."""
        uses, judged = self._uses_of(dim, sizes)
        key = dim.size, low, high
        if key not in judged:
            known = self.source.sizes(uses, low, high) if uses else ()
            judged[key] = self._judge(uses, sorted({dim.size, *known}))
        return judged[key]

    def verdict(self, dim: Dim, size: int, sizes: NewSizes = AS_STORED) -> SizeVerdict:
        """The verdict on one size where other dims have these ``sizes``."""
        uses, judged = self._uses_of(dim, sizes)
        if not uses:
            reason = f"no product of {dim.name} is known"
            return SizeVerdict(size, "unknown", reason=reason, cause="not_measured")
        for verdicts in judged.values():
            verdict = verdicts.of(size)
            if verdict is not None:
                return verdict
        judged[size,] = self._judge(uses, [size])
        return judged[size,].at(0)

    def _uses_of(
        self, dim: Dim, sizes: NewSizes
    ) -> tuple[list[Use], dict[tuple[int, ...], Verdicts]]:
        """The dim's uses, and what was judged of equal ones."""
        uses = self.products.uses_of(dim, sizes)
        shapes = tuple((u.N, u.K, u.gemm.bias, u.tokens, u.dtype, u.weight) for u in uses)
        return uses, self._judged.setdefault(shapes, {})

    def _judge(self, uses: Sequence[Use], sizes: Sequence[int]) -> Verdicts:
        from gacprof.core.verdicts import as_verdicts

        answer = self.source.judge(uses, sizes) if uses else []
        return as_verdicts(answer, self.source.tolerance)

    def beside_padded(self, dim: Dim, low: int, high: int, sizes: NewSizes = AS_STORED) -> Verdicts:
        """The verdicts where the coupled dims of these ``sizes`` are padded to the first of
        :data:`PADDED_TO` at which the source knows any, else where they are not padded."""
        for multiple in PADDED_TO:
            padded = {**sizes, **self.padded_neighbours(dim, multiple, sizes)}
            verdicts = self.verdicts(dim, low, high, padded)
            if verdicts.is_known.any():
                return verdicts
        return self.verdicts(dim, low, high, sizes)

    def padded_neighbours(
        self, dim: Dim, multiple: int, sizes: NewSizes = AS_STORED
    ) -> dict[str, int]:
        """Return the coupled dims at the next multiples of their ``sizes``."""
        return padded_neighbours(self.products.inventory, dim, multiple, sizes)

    def is_merged_faster(self, dim: Dim, size: int | None) -> bool:
        """Whether dense products are surely faster than the factor pairs of a rank of this size."""
        if not self.products.inventory.is_mergeable(dim):
            return False
        modules = self.products.inventory.modules_of[dim.name]
        pair = self.products.time_us(self.source, modules, {dim.name: size})
        dense = self.products.time_us(self.source, modules, {dim.name: None})
        return pair is not None and dense is not None and dense.high < pair.low

    def merged_verdict(self, dim: Dim, sizes: NewSizes) -> Verdict:
        """The worse of the verdicts on N and K of the dense products in place of a merged rank."""
        verdicts: list[Verdict] = []
        for module in self.products.inventory.modules_of[dim.name]:
            (gemm,) = self.products.gemms(module, {**sizes, dim.name: None})
            n_tp, k_tp = self.products.shares(module, 0, 1)
            n, k = Side(gemm.N, 0, n_tp), Side(gemm.K, 0, k_tp)
            dtype = self.products.dtype_of(module)
            for size, sides in ((gemm.N, (Side(0, 1, n_tp), k)), (gemm.K, (n, Side(0, 1, k_tp)))):
                tokens = self.products.tokens.items()
                uses = [Use(gemm, *sides, count, dtype, weight) for count, weight in tokens]
                verdicts.append(self.source.judge(uses, [size])[0].verdict)
        return max(verdicts, key=WORST_LAST.index, default="unknown")


WORST_LAST: Sequence[Verdict] = ("safe", "undecided", "misaligned", "unknown")


def better_size(
    verdicts: Iterable[SizeVerdict], size: int, tolerance: float, limit: int = MAX_DIM
) -> SizeVerdict | None:
    """The smallest size above this one, up to the limit, that seems safe."""
    larger = [v for v in verdicts if size < v.size <= limit and seems_safe(v, tolerance)]
    return min(larger, key=lambda v: v.size, default=None)
