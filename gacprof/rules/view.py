"""What rules say of a model's sizes: any size of any product, token count and shard.

The verdict follows from the tiers (:mod:`gacprof.rules.verdicts`), the worst of all products that
the dim is in. One of the best tier is safe where nothing published speaks against it: multiples of
128 bytes, more than a few rows. What the rules do not cover is unknown, never safe. Sizes of the
best tier are on offer.

Another side of a product whose size may be changed too is taken as aligned: it is judged by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import gcd, inf, lcm

from gacprof import operators
from gacprof.cliffmap.estimate import NOTHING, Estimate
from gacprof.cliffmap.source import Asked, Product, Side, SizeCost, workload_of
from gacprof.core.errors import MapError
from gacprof.core.points import Flag
from gacprof.rules import gemm, serve
from gacprof.rules.target import NoRuleError, RefusedError, Target
from gacprof.rules.verdicts import REACH, judge_tier, judged

NO_LATENCY = "rules know tiers, no latency: measure it with 'gacprof sweep --for CHECKPOINT'"
PREFILL = 1024
"""Tokens that attention is judged at where only decode steps were asked for."""
Time = Callable[[str, int, int, int], Estimate]
"""The time of y[M, N] = x[M, K] · Wᵀ by dtype, M, N and K. Raises :class:`MapError` for a dtype
that was not measured."""


class RuleView:
    """One model's products by the rules of one GPU and PyTorch release, as ``name`` has them.

    ``basis`` says so; ``time`` gives others' times, where there are any."""

    tolerance = 0.0
    noisy = False
    tokens_note = ""
    flags: Mapping[str, Flag] = {}

    def __init__(
        self, target: Target, held: Sequence[str], asked: Asked, name: str, basis: str,
        time: Time | None = None,
    ) -> None:  # fmt: skip
        self.target, self.held, self.name, self._time = target, held, name, time
        self.tokens = workload_of(asked.tokens)
        named = target.dtype(asked.dtype) if asked.dtype else asked.computed
        self._asked = asked.dtype is not None
        self.dtype = named if self._asked else self._judged_in(named)
        self.notes: list[str] = [
            f"{basis} ({name}): a misaligned size is of a worse tier than a larger one; what that "
            "costs is known only where it was published"
        ]
        if self.dtype != named:
            self.notes.append(
                f"computed in {named}; judged in {self.dtype}, as the table is of "
                f"{', '.join(held)} alone"
            )
        if self.dtype not in target.dtypes:
            self.notes.append(
                f"{target.sheet.name} ({target.arch}) has no rules for {self.dtype}: there are "
                f"{', '.join(target.dtypes)} (--dtype)"
            )
        if self.dtype == "float32":
            self.notes.append(
                "judged in float32, where alignment hardly matters: --dtype bfloat16 judges what "
                "is served in that"
            )
        self._tiers: dict[tuple[object, ...], int | None] = {}
        self._heads: dict[tuple[int, int, int], tuple[SizeCost, int] | None] = {}
        self._times: dict[tuple[int, int, str], Estimate] = {}

    def latency(self, n: int, k: int, bias: bool, dtype: str = "") -> Estimate:
        key = n, k, self.dtype if self._asked or not dtype else dtype
        if key not in self._times:
            self._times[key] = self._latency(*key)
        return self._times[key]

    def _latency(self, n: int, k: int, dtype: str) -> Estimate:
        if self._time is None:
            return Estimate(None, NO_LATENCY)
        try:
            each = [self._time(dtype, m, n, k).times(w) for m, w in self.tokens.items()]
        except MapError as error:
            return Estimate(None, str(error))
        return sum(each, NOTHING)

    def sizes(self, products: Sequence[Product], low: int, high: int) -> Sequence[int]:
        """Those at which each product's own side is of the best tier."""
        step, first = self._aligned(products)
        if first is None:
            return []
        begin = first + -(-(max(low, 1) - first) // step) * step
        return range(begin or step, high + 1, step)

    def step(self, products: Sequence[Product]) -> int:
        return self._aligned(products)[0]

    def judge(
        self, products: Sequence[Product], sizes: Sequence[int], most: int | None
    ) -> list[SizeCost]:
        try:
            return [self._judged(products, size, most) for size in sizes]
        except NoRuleError as error:
            return [SizeCost(size, missing=str(error)) for size in sizes]

    def mechanism(self, product: Product, size: int) -> str | None:
        sides = self._sides(product, size)
        if sides is None:
            shards = max(product.N.shards, product.K.shards)
            return f"nothing: {shards} shards cannot divide {size}"
        dtype = self._dtype(product)
        operator = "quantised" if dtype in gemm.DEMANDS else "linear"
        rows = max(*self.tokens, gemm.DEMANDS.get(dtype, (1, 1))[1])
        dims = {"M": rows, "N": sides[0], "K": sides[1]}
        try:
            return serve(operators.point(operator, dims, dtype), self.target).mechanism
        except RefusedError:
            multiple, _ = gemm.DEMANDS.get(dtype, (1, 1))
            return f"nothing: {dtype} takes multiples of {multiple}" if multiple > 1 else None
        except NoRuleError:
            return None

    def head_dim(self, heads: int, kv_heads: int, head_dim: int) -> tuple[SizeCost, int] | None:
        key = heads, kv_heads, head_dim  # asked for every product that whole heads are a side of
        if key not in self._heads:
            self._heads[key] = self._head_dim(*key)
        return self._heads[key]

    def _head_dim(self, heads: int, kv_heads: int, head_dim: int) -> tuple[SizeCost, int] | None:
        dims = {"heads": heads, "kv_heads": kv_heads, "q_len": max(*self.tokens, 2)}
        dims["q_len"] = PREFILL if dims["q_len"] == 2 else dims["q_len"]
        dtype = self.dtype if self.dtype in gemm.HALVES else "bfloat16"
        at = operators.point("attention", dims | {"head_dim": head_dim}, dtype, {"causal": True})
        larger = judged(at, "head_dim", range(head_dim, head_dim + REACH + 1), self.target)
        if head_dim not in larger:
            return None
        cost = larger[head_dim]
        safe = next((d for d in larger if larger[d].verdict == "safe"), head_dim)
        return replace(cost, why=cost.mechanism or "", mechanism=None), safe

    def no_better(self, products: Sequence[Product]) -> str:
        if self.step(products) > 1:
            return ""
        return (
            f"by the rules of '{self.name}' all sizes are of one tier in {self.dtype}, so that "
            "none is known to be better: name the dtype that is served, such as dtype='bfloat16'"
        )

    def no_safe(self, products: Sequence[Product], fixed: Sequence[int]) -> str:
        step = self.step(products)
        odd = dict.fromkeys(f"{size}" for size in fixed if size % step)
        held = f"{' and '.join(odd)}, which no rank changes, is no multiple of {step}: it holds"
        why = f"{held} the pair back" if odd else "none of the best tier in reach is sure"
        return (
            f"by the rules of '{self.name}' no rank is safe in {self.dtype}: {why} "
            "(safe_only=False)"
        )

    def _judged(self, products: Sequence[Product], size: int, most: int | None) -> SizeCost:
        last = size + self._reach(products)
        cost = judge_tier(
            size,
            last if most is None else min(last, most),
            lambda other: self._tier(products, other),
            lambda other, tier: self._unsure(products, other) if tier == 1 else "",
        )
        if cost.verdict == "misaligned":
            return self._with_worst(cost, products, size)
        if cost.verdict is None:
            sizes = " and ".join(dict.fromkeys(str(p.at(size) or size) for p in products))
            return replace(cost, missing=f"no kernel serves {sizes}, nor a size near it")
        return cost

    def _unsure(self, products: Sequence[Product], size: int) -> str:
        """Why a size of the best tier is not safe; empty where it is. Its own sides count: another
        side that may be changed is judged by itself."""
        if max(self.tokens) <= gemm.FEW_ROWS:
            return f"at most {max(self.tokens)} tokens: {gemm.FEW.says}"
        for product in products:
            dtype = self._dtype(product)
            own = [side.at(size) for side in (product.N, product.K) if side.times]
            if not all(length and gemm.is_sure(dtype, length) for length in own):
                multiple = gemm.sure_multiple(dtype)
                return (
                    f"no multiple of {multiple} on a rank: {gemm.unsure(self.target, dtype).says}"
                )
        return ""

    def _tier(self, products: Sequence[Product], size: int) -> int | None:
        """The worst tier of the products over the token counts; None where one is not served."""
        worst = 1
        for product in products:
            sides = self._sides(product, size)
            if sides is None:
                return None
            for m in self.tokens:
                key = (*sides, m, self._dtype(product))
                if key not in self._tiers:
                    n, k, _, dtype = key
                    one_row = m == 1 and dtype in gemm.HALVES  # then N holds nothing back for sure
                    self._tiers[key] = gemm.tier(self.target, dtype, m, 0 if one_row else n, k)
                found = self._tiers[key]
                if found is None:
                    return None
                worst = max(worst, found)
        return worst

    def _sides(self, product: Product, size: int) -> tuple[int, int] | None:
        unit = self._multiple(product)
        n, k = (_length(side, size, unit) for side in (product.N, product.K))
        return None if n is None or k is None else (n, k)

    def _dtype(self, product: Product) -> str:
        """The user's word, or what the product is computed in where the table holds that."""
        if self._asked or not product.dtype:
            return self.dtype
        return self._judged_in(product.dtype)

    def _judged_in(self, computed: str) -> str:
        """A dtype that the table holds in the place of one that it was not asked for; one that the
        GPU has no rules for stays, and nothing is known of it."""
        known = computed in self.held or computed not in self.target.dtypes
        return computed if known else self.held[0]

    def _multiple(self, product: Product) -> int:
        dtype = self._dtype(product)
        best = gemm.levels(self.target, dtype)[0].elements
        return lcm(best, gemm.DEMANDS.get(dtype, (1, 1))[0])

    def _reach(self, products: Sequence[Product]) -> int:
        return REACH * max(side.shards for p in products for side in (p.N, p.K) if side.times)

    def _aligned(self, products: Sequence[Product]) -> tuple[int, int | None]:
        """(step, first): sizes ``first``, ``first + step`` … at which all sides that the dim is on
        are multiples of what the best tier asks; ``first`` is None where there is no such size."""
        try:
            units = [
                (side, self._multiple(p)) for p in products for side in (p.N, p.K) if side.times
            ]
        except NoRuleError:
            return 1, None
        wholes = [(side, unit * side.shards) for side, unit in units]
        step = lcm(*(whole // gcd(whole, side.times) for side, whole in wholes))
        for first in range(step):
            lengths = (_whole(side, unit) + side.times * first for side, unit in units)
            if all(n % whole == 0 for n, (_, whole) in zip(lengths, wholes, strict=True)):
                return step, first
        return step, None

    def _with_worst(self, cost: SizeCost, products: Sequence[Product], size: int) -> SizeCost:
        """With what serves the worst product, and what was published of its tier: that product is
        the one of the largest published cost, else of the worst tier."""
        tiers = [self._tier([product], size) for product in products]
        found = [
            (self._relative(product, size) or 0.0, inf if tier is None else tier, -i)
            for i, (product, tier) in enumerate(zip(products, tiers, strict=True))
        ]
        relative, _, place = max(found)
        where = f"of K alone, {gemm.paper(self.target)}" if relative else ""
        served = self.mechanism(products[-place], size)
        return replace(cost, relative=relative or None, relative_from=where, mechanism=served)

    def _relative(self, product: Product, size: int) -> float | None:
        """The largest published cost of the product's tier at this size, beside the best."""
        sides = self._sides(product, size)
        if sides is None:
            return None
        dtype = self._dtype(product)
        costs = [gemm.relative_cost(self.target, dtype, m, *sides) for m in self.tokens]
        return max((cost for cost in costs if cost is not None and cost > 1), default=None)


def _whole(side: Side, unit: int) -> int:
    """What others are on a side, those that may be changed too at their next aligned size."""
    step = unit * side.shards
    return -(-side.others // step) * step if side.free else side.others


def _length(side: Side, size: int, unit: int) -> int | None:
    """The side's length, where other dims that may be changed are aligned."""
    whole, rest = divmod(_whole(side, unit) + side.times * size, side.shards)
    return None if rest or whole < 1 else whole
