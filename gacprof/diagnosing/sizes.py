"""Verdicts on the sizes of a model's dims, each beside the sizes of the dims that it meets.

A rank of 131 and a width of 683 are N and K of one product, and PaLU's groups add up on one side
of theirs: such dims are *coupled*. Beside an odd one no size of the other is fast, and each looks
as good as it can be. So a dim is judged with its coupled dims padded, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from gacprof.checkpoint.inventory import Dim, NewSizes
from gacprof.core.points import MAX_DIM
from gacprof.core.sizes import Side, SizeSource, SizeVerdict, Use, Verdict
from gacprof.workload.products import AS_STORED, PADDED_TO, Products, padded_neighbours

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
    """A source's verdicts on the dims of one model. Equal dims are judged once."""

    products: Products
    source: SizeSource
    _verdicts: dict[object, dict[int, SizeVerdict]] = field(default_factory=dict)

    def verdicts(
        self, dim: Dim, low: int, high: int, sizes: NewSizes = AS_STORED
    ) -> dict[int, SizeVerdict]:
        """The verdicts on a dim's own size and those within [low, high] that the source knows,
        where other dims have these ``sizes``."""
        uses = self.products.uses_of(dim, sizes)
        return self._verdicts_of(uses, {dim.size, *self.source.sizes(uses, low, high)})

    def verdict(self, dim: Dim, size: int, sizes: NewSizes = AS_STORED) -> SizeVerdict:
        """The verdict on one size where other dims have these ``sizes``."""
        unknown = SizeVerdict(size, "unknown", reason=f"no product of {dim.name} is known")
        return self._verdicts_of(self.products.uses_of(dim, sizes), {size}).get(size, unknown)

    def _verdicts_of(self, uses: Sequence[Use], sizes: Collection[int]) -> dict[int, SizeVerdict]:
        """The verdicts on these sizes; uses equal but for the names of the weights are judged
        once."""
        shapes = [(u.N, u.K, u.gemm.bias, u.tokens, u.dtype, u.weight) for u in uses]
        key = (frozenset(sizes), *shapes)
        if key not in self._verdicts:
            verdicts = self.source.judge(uses, sorted(sizes)) if uses else []
            self._verdicts[key] = {verdict.size: verdict for verdict in verdicts}
        return self._verdicts[key]

    def beside_padded(
        self, dim: Dim, low: int, high: int, sizes: NewSizes = AS_STORED
    ) -> dict[int, SizeVerdict]:
        """The verdicts where the coupled dims of these ``sizes`` are padded to the first of
        :data:`PADDED_TO` at which the source knows any, else where they are not padded."""
        for multiple in PADDED_TO:
            padded = {**sizes, **self.padded_neighbours(dim, multiple, sizes)}
            verdicts = self.verdicts(dim, low, high, padded)
            if any(verdict.verdict != "unknown" for verdict in verdicts.values()):
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
                rows = self.products.rows_of(module) or self.products.tokens
                uses = [Use(gemm, *sides, m, dtype, weight) for m, weight in rows.items()]
                verdicts.append(self.source.judge(uses, [size])[0].verdict)
        return max(verdicts, key=WORST_LAST.index, default="unknown")


WORST_LAST: Sequence[Verdict] = ("safe", "undecided", "misaligned", "unknown")


def seems_safe(verdict: SizeVerdict, tolerance: float) -> bool:
    """Whether a size may be chosen: it is safe; or undecided by noise alone, its penalty estimated
    within the source's tolerance; or undecided by a source without latencies."""
    if verdict.verdict != "undecided":
        return verdict.verdict == "safe"
    penalty = verdict.penalty
    return penalty is None or penalty.value <= tolerance < penalty.high


def better_size(
    verdicts: Iterable[SizeVerdict], size: int, tolerance: float, limit: int = MAX_DIM
) -> SizeVerdict | None:
    """The smallest size above this one, up to the limit, that seems safe."""
    larger = [v for v in verdicts if size < v.size <= limit and seems_safe(v, tolerance)]
    return min(larger, key=lambda v: v.size, default=None)
