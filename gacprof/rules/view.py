"""What rules say of a model's sizes: any size of any product, token count and shard.

The verdict comes from the tiers themselves. A size is *safe* where every product that the dim is in
is of tier 1, the best there is, and the size one that nothing published speaks against (multiples
of 128 bytes, more than a few rows); *misaligned* where a larger size within reach is of a better
tier or no kernel serves it at all; *undecided* where it is of the best tier and no more is known,
where something else holds its products in a worse tier, or what serves it has steps that nobody
knows. What the rules do not cover is unknown, never safe. Sizes of the best tier are on offer.

Another side of a product whose size may be changed too is taken as aligned: it is judged by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import gcd, inf, lcm
from typing import TYPE_CHECKING

from gacprof import operators
from gacprof.cliffmap.source import Answer, Asked, Estimate, Product, Side, SizeCost, workload_of
from gacprof.core.points import Flag, Point
from gacprof.rules import gemm, serve
from gacprof.rules.target import NoRuleError, RefusedError, Target

if TYPE_CHECKING:
    from gacprof.stats.findings import Verdict

NO_LATENCY = "rules know tiers, no latency: measure it with 'gacprof sweep --for CHECKPOINT'"
REACH = 64
"""How far above a size a better one is looked for, in units of one shard: templates of attention
are as far apart, alignments repeat earlier."""
PREFILL = 1024
"""Tokens that attention is judged at where only decode steps were asked for."""


class RuleView:
    """One model's products by the rules of one GPU and PyTorch release."""

    tolerance = 0.0
    noisy = False
    tokens_note = ""
    flags: Mapping[str, Flag] = {}

    def __init__(self, target: Target, held: Sequence[str], asked: Asked, basis: str) -> None:
        self.target, self.held = target, held
        self.tokens = workload_of(asked.tokens)
        named = target.dtype(asked.dtype) if asked.dtype else asked.computed
        self._asked = asked.dtype is not None
        self.dtype = named if self._asked else self._judged_in(named)
        self.notes: list[str] = [
            f"{basis}: a misaligned size is of a worse tier than a larger one; what that costs is "
            "known only where it was published"
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
        self._heads: dict[tuple[int, int, int], Answer | None] = {}

    def latency(self, n: int, k: int, bias: bool, dtype: str = "") -> Estimate:
        return Estimate(None, NO_LATENCY)

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
    ) -> list[Answer]:
        try:
            return [self._answer(products, size, most) for size in sizes]
        except NoRuleError as error:
            return [Answer(size, None, missing=str(error)) for size in sizes]

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

    def head_dim(self, heads: int, kv_heads: int, head_dim: int) -> Answer | None:
        key = heads, kv_heads, head_dim  # asked for every product that whole heads are a side of
        if key not in self._heads:
            self._heads[key] = self._head_dim(*key)
        return self._heads[key]

    def _head_dim(self, heads: int, kv_heads: int, head_dim: int) -> Answer | None:
        dims = {"heads": heads, "kv_heads": kv_heads, "q_len": max(*self.tokens, 2)}
        dims["q_len"] = PREFILL if dims["q_len"] == 2 else dims["q_len"]
        dtype = self.dtype if self.dtype in gemm.HALVES else "bfloat16"
        at = operators.point("attention", dims | {"head_dim": head_dim}, dtype, {"causal": True})
        larger = judged(at, "head_dim", range(head_dim, head_dim + REACH + 1), self.target)
        if head_dim not in larger:
            return None
        verdict, tier, _, mechanism = larger[head_dim]
        cost = SizeCost(head_dim, None, None, None, None, verdict, tier, mechanism)
        return Answer(next((d for d in larger if larger[d][0] == "safe"), head_dim), cost)

    def _answer(self, products: Sequence[Product], size: int, most: int | None) -> Answer:
        tier = self._tier(products, size)
        if tier == 1:
            why = self._unsure(products, size)
            return Answer(size, _cost(size, "undecided" if why else "safe", 1, why))
        last = size + self._reach(products)
        last = last if most is None else min(last, most)
        for larger in range(size + 1, last + 1):
            better = self._tier(products, larger)
            if better is not None and (tier is None or better < tier):
                why = f"{larger} is of tier {better}"
                cost = _cost(size, "misaligned", tier, why)
                return Answer(size, self._with_worst(cost, products, size))
        if tier is None:
            sizes = " and ".join(dict.fromkeys(str(p.at(size) or size) for p in products))
            return Answer(size, None, missing=f"no kernel serves {sizes}, nor a size near it")
        why = f"of tier {tier}, and so is every larger size near it: something else holds it there"
        return Answer(size, _cost(size, "undecided", tier, why))

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


def _cost(size: int, verdict: Verdict, tier: int | None, why: str = "") -> SizeCost:
    return SizeCost(size, None, None, None, None, verdict, tier, why)


def _whole(side: Side, unit: int) -> int:
    """What others are on a side, those that may be changed too at their next aligned size."""
    step = unit * side.shards
    return -(-side.others // step) * step if side.free else side.others


def _length(side: Side, size: int, unit: int) -> int | None:
    """The side's length, where other dims that may be changed are aligned."""
    whole, rest = divmod(_whole(side, unit) + side.times * size, side.shards)
    return None if rest or whole < 1 else whole


Verdicts = tuple["Verdict", "int | None", "int | None", str]


def judged(at: Point, axis: str, dims: Sequence[int], target: Target) -> dict[int, Verdicts]:
    """(verdict, tier, the best size at least as large, mechanism) of an operator's point at each of
    these sizes of one axis. What is refused is of no tier, and has its reason for a mechanism; what
    neither it nor any larger size is served is left out.

    Rules say nothing of steps along token counts: such a size is never safe. Raises
    :class:`NoRuleError`.
    """
    known: dict[int, tuple[int | None, bool, str]] = {}

    def served(d: int) -> tuple[int | None, bool, str]:
        if d not in known:
            try:
                found = serve(at.with_dim(axis, d), target)
                known[d] = found.tier, found.open or axis in TOKEN_AXES, found.mechanism
            except RefusedError as error:
                known[d] = None, False, str(error)
        return known[d]

    rows = axis in ("K", "N") and at.operator in GEMMS
    verdicts: dict[int, Verdicts] = {}
    for d in dims:
        tier, is_open, mechanism = served(d)
        if tier == 1:
            is_open = is_open or (rows and not gemm.is_sure(at.dtype, d))
            verdicts[d] = ("undecided" if is_open else "safe"), 1, d, mechanism
            continue
        above = {s: t for s in range(d + 1, d + REACH + 1) if (t := served(s)[0]) is not None}
        best = min(above, key=lambda s: (above[s], s), default=None)
        if best is not None and (tier is None or above[best] < tier) and not is_open:
            verdicts[d] = "misaligned", tier, best, mechanism
        elif tier is not None:
            verdicts[d] = "undecided", tier, d, mechanism
    return verdicts


GEMMS = ("linear", "bmm", "experts", "quantised")
TOKEN_AXES = ("M", "q_len", "kv_len", "tokens", "rows", "batch")
