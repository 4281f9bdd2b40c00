"""A model's products and a source of sizes, joined: what each dim costs at any size.

The only place where an inventory and a source come together. Products are asked for as one rank of
a tensor-parallel group runs them (:mod:`gacprof.checkpoint.products`). What the source does not
know stays None and keeps the reason.
"""

from __future__ import annotations

import copy
from collections import ChainMap
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from gacprof.checkpoint.inventory import Dim, Gemm, Inventory, Module
from gacprof.checkpoint.products import LocalProducts
from gacprof.cliffmap.estimate import NOTHING, Estimate, Interval
from gacprof.cliffmap.source import (
    Asked,
    Product,
    Side,
    SizeCost,
    SizeSource,
    Tokens,
    is_number,
    workload_of,
)
from gacprof.cliffmap.view import NOISY
from gacprof.core.points import MAX_DIM
from gacprof.stats.judge import judge

T = TypeVar("T")


@dataclass(frozen=True)
class LatencyProfile:
    """What one dim could become, by size, ascending. A size is judged on the sum over all GEMMs
    that the dim feeds: one that suits one product and not the other, by what both cost.

    ``missing`` says which product the map lacks, where it lacks one; ``noisy`` that the map as a
    whole is too noisy to judge by.
    """

    costs: Mapping[int, SizeCost]
    tolerance: float
    scaled: bool
    missing: str = ""
    noisy: bool = False

    def offers(self, size: int, now: int) -> bool:
        """Whether a plan may choose the size: a safe one; one that seems safe, though noise leaves
        it undecided, if the map tells what is gained and is not ``noisy``; one of the best tier,
        where that is all there is; and the size as it is ``now`` while nothing says that it is
        misaligned."""
        cost = self.costs.get(size)
        if cost is None or cost.verdict == "misaligned":
            return False
        if cost.verdict == "safe" or size == now or cost.tier == 1:
            return True
        if self.noisy or cost.penalty_high is None or now not in self.costs:
            return False
        return cost.penalty is not None and cost.penalty <= self.tolerance

    def best_padding(self, size: int) -> SizeCost | None:
        """The fastest size ≥ ``size``; the smallest within the tolerance of it. Where no time is
        known, the smallest of the best tier."""
        above = [cost for cost in self.costs.values() if cost.size >= size]
        times = [cost.latency_us for cost in above if cost.latency_us is not None]
        if not times:
            tiers = {cost.size: (cost.tier, cost.size) for cost in above if cost.tier is not None}
            return self.costs[min(tiers, key=lambda s: tiers[s])] if tiers else None
        limit = min(times) * (1 + self.tolerance)
        return next(c for c in above if c.latency_us is not None and c.latency_us <= limit)


class Predictor:
    """What a source says of the products and dims of one model, over a workload.

    ``tokens`` maps token counts (rows of x) to weights; ``dtype`` is the user's word; both default
    to what the source holds (:class:`ModelView`). ``tp`` ranks share the products.
    """

    def __init__(
        self,
        source: SizeSource,
        inventory: Inventory,
        tokens: Tokens | None = None,
        dtype: str | None = None,
        tp: int = 1,
    ) -> None:
        self.source = source
        self.inventory = inventory
        self.ranks = LocalProducts(inventory, tp)
        self._gemms: MutableMapping[str, Gemm] = {
            g.weight: g for module in inventory.modules for g in module.gemms
        }
        shapes = {self.ranks.local(g) for g in self._gemms.values()}
        held = frozenset(shape for shape in shapes if shape is not None)
        asked = Asked(inventory.path, held, self.ranks.computed, tokens, dtype)
        self.view = source.view(asked)
        self._sums: dict[tuple[object, ...], Estimate] = {}
        self.memo: dict[object, Any] = {}
        self.dtype, self.tokens = self.view.dtype, self.view.tokens
        self.tolerance, self.noisy = self.view.tolerance, self.view.noisy
        self.tokens_note = self.view.tokens_note

    @property
    def too_noisy(self) -> str:
        """The note that says so of a noisy source."""
        return next(note for note in self.view.notes if note.startswith(NOISY))

    def once(self, key: object, make: Callable[[], T]) -> T:
        """What was derived for dims, by shape, or is now; copies of the predictor share it."""
        if key not in self.memo:
            self.memo[key] = make()
        found: T = self.memo[key]
        return found

    def gemm(self, n: int, k: int, bias: bool) -> Estimate:
        """One pass of the workload through ``y[M, n] = x[M, k] · Wᵀ`` as it stands on a rank."""
        return self.view.latency(n, k, bias)

    def gemms(self, gemms: Sequence[Gemm]) -> Estimate:
        """These products, one after another, as one rank runs them."""
        key = tuple((*self.ranks.key(g), g.N, g.K, g.bias) for g in gemms)
        if key not in self._sums:
            self._sums[key] = sum((self._one(gemm) for gemm in gemms), NOTHING)
        return self._sums[key]

    def _one(self, gemm: Gemm) -> Estimate:
        local = self.ranks.local(gemm)
        if local is None:
            return Estimate(None, f"{self.ranks.tp} shards cannot divide {gemm.N}×{gemm.K}")
        return self.view.latency(*local, gemm.bias, self.ranks.dtype_of(gemm.weight))

    def at(self, tokens: int) -> Predictor:
        """The model as it is at one token count."""
        if self.tokens == {tokens: 1.0}:
            return self
        return self.once(
            ("at", tokens),
            lambda: Predictor(
                self.source, self.inventory, {tokens: 1.0}, self.dtype, self.ranks.tp
            ),
        )

    def with_sizes(self, sizes: Mapping[str, int | None]) -> Predictor:
        """The same, with these dims at other sizes to begin with. A rank that becomes None is
        multiplied out: the other dims of its module feed one dense product."""
        other = copy.copy(self)
        other._gemms = ChainMap({}, self._gemms)
        for name, size in sizes.items():
            if size is None:
                for module in self.inventory.modules_of(name):
                    first, last = (other._gemms[module.gemms[i].weight] for i in (0, -1))
                    other._gemms[first.weight] = replace(first, N=module.out_features)
                    other._gemms[last.weight] = replace(last, K=module.in_features)
                continue
            for gemm in other.resized(self.inventory.dim(name), size):
                other._gemms[gemm.weight] = gemm
        return other

    def products(self, dim: Dim) -> tuple[Product, ...]:
        """The dim's products on one rank, whatever the dim's own size."""
        return tuple(self._product(gemm, dim, n, k) for gemm, n, k in self._fed(dim))

    def _product(self, gemm: Gemm, dim: Dim, n: int, k: int) -> Product:
        on_n, on_k = self.ranks.shards(gemm.weight)
        others = [
            (feed.axis, other.name)
            for other in self.inventory.fed_by(gemm.weight)
            if other.name != dim.name and other.adjustable
            for feed in other.feeds
            if feed.weight == gemm.weight
        ]
        free = {axis for axis, _ in others}
        return Product(
            Side(gemm.N - n * dim.size, n, on_n, "N" in free),
            Side(gemm.K - k * dim.size, k, on_k, "K" in free),
            gemm.bias,
            self.ranks.dtype_of(gemm.weight),
        )

    def judge(self, dim: Dim, sizes: Sequence[int]) -> list[SizeCost]:
        """The source's verdict on each of these ascending sizes of the dim."""
        return self.view.judge(self.products(dim), sizes, dim.most)

    def sizes(self, dim: Dim, low: int, high: int) -> Sequence[int]:
        """The sizes of the dim within [low, high] that are on offer."""
        return self.view.sizes(self.products(dim), low, high)

    def profile(self, dim: Dim, low: int, high: int, also: Collection[int] = ()) -> LatencyProfile:
        """What the map knows of the dim at sizes from ``low`` to ``high``, ``also`` at these, and
        as it is.

        Sizes are those that the source has on offer; it compares them with larger ones, whether or
        not these are within ``high`` or :attr:`Dim.most`. ``dim.dense_size`` has no say: a size is
        no better served for having been larger once.
        """

        def make() -> LatencyProfile:
            most = min(high, dim.most or MAX_DIM)
            offered = self.sizes(dim, min(low, dim.size, *also), most)
            judged = self.judge(dim, sorted({dim.size, *offered, *also}))
            costs = {cost.size: cost for cost in judged if cost.verdict and cost.size <= most}
            missing = next((cost.missing for cost in judged if cost.missing), "")
            scaled = any(cost.scaled for cost in judged)
            return LatencyProfile(costs, self.tolerance, scaled, missing, self.noisy)

        return self.once((self.shape_of(dim), low, high, *sorted(also)), make)

    def period(self, dim: Dim) -> int:
        """What good sizes of the dim repeat with; 1 where that is not known."""
        return self.view.step(self.products(dim))

    def mechanism(self, dim: Dim) -> str | None:
        """What serves the dim's first product at the largest token count, where it is known."""
        return self.view.mechanism(self.products(dim)[0], dim.size)

    def served_well(self, module: Module) -> bool:
        """Whether the module's dense product, as it is, is of the best mechanism, where the source
        tells without times."""
        sides = Side(module.out_features), Side(0, 1)
        (cost,) = self.view.judge([Product(*sides)], [module.in_features], module.in_features)
        return cost.tier == 1

    def dim(self, dim: Dim, size: int) -> Estimate:
        """All GEMMs that ``dim`` feeds, were its size ``size`` and every other as it is."""
        return self.gemms(self.resized(dim, size))

    def product(self, weight: str) -> Estimate:
        """The GEMM of that weight, as it is."""
        return self.gemms([self._gemms[weight]])

    def dense(self, module: Module) -> Estimate:
        """The module's factors multiplied out: one product as long and as wide as it is."""
        bias = any(gemm.bias for gemm in module.gemms)
        return self.gemms([Gemm(module.name, module.out_features, module.in_features, bias)])

    def no_slower(self, module: Module, rank: Dim, size: int) -> bool:
        """Whether the dense weight surely takes no longer than the factor pair with that rank, if
        that is known."""
        dense, pair = self.dense(module), self.dim(rank, size)
        if dense.latency_us is None or pair.latency_us is None:
            return True
        known = None if dense.error is None or pair.error is None else [dense.error, pair.error]
        latency, degrees = [dense.latency_us, pair.latency_us], [dense.degrees, pair.degrees]
        found = judge(latency, known, self.tolerance, degrees=degrees)
        return found.verdict[0] == "safe"

    def resized(self, dim: Dim, size: int) -> list[Gemm]:
        """The GEMMs that ``dim`` feeds, as they would be at ``size``."""
        more = size - dim.size
        return [
            Gemm(gemm.weight, gemm.N + more * n, gemm.K + more * k, gemm.bias)
            for gemm, n, k in self._fed(dim)
        ]

    def _fed(self, dim: Dim) -> list[tuple[Gemm, int, int]]:
        """The GEMMs that the dim feeds, and how often it counts on N and on K of each."""
        times: dict[str, list[int]] = {}
        for feed in dim.feeds:
            times.setdefault(feed.weight, [0, 0])[feed.axis == "K"] += 1
        return [(self._gemms[weight], n, k) for weight, (n, k) in times.items()]

    def shape_of(self, dim: Dim) -> object:
        """What the dim's verdicts follow from: the same for equal layers."""
        return dim.size, dim.most, self.products(dim)

    def planned(
        self, changes: Mapping[str, int | None], modules: Sequence[Module] | None = None
    ) -> list[Gemm]:
        """The products of the weights that have adjustable dims, or of these ``modules``, with
        these dims resized.

        A rank that becomes None is fused away: its module is one dense product.
        """
        near = self.with_sizes({name: size for name, size in changes.items() if size is not None})
        found: list[Gemm] = []
        for module in self.inventory.modules if modules is None else modules:
            if not module.dims:
                continue
            gemms = [near._gemms[gemm.weight] for gemm in module.gemms]
            if any(changes.get(name, 0) is None for name in module.dims):
                wide = module.out_features + gemms[-1].N - module.gemms[-1].N
                deep = module.in_features + gemms[0].K - module.gemms[0].K
                gemms = [Gemm(module.name, wide, deep, any(gemm.bias for gemm in gemms))]
            found += gemms
        return found

    def weights(
        self, changes: Mapping[str, int | None], modules: Sequence[Module] | None = None
    ) -> Estimate:
        """The time of all of these products."""
        return sum((self._one(gemm) for gemm in self.planned(changes, modules)), NOTHING)

    def saved(self, changes: Mapping[str, int | None]) -> Interval | None:
        """How much less the weights take whose dims change, with bounds; None where a time or its
        error is not known."""
        changed = [m for m in self.inventory.modules if any(name in changes for name in m.dims)]
        return self.weights({}, changed).saved(self.weights(changes, changed))


__all__ = ["Estimate", "Predictor", "Tokens", "is_number", "workload_of"]
