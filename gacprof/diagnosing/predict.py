"""What the map says a model's matrix products cost, at the token counts that will be served.

The only place where an inventory meets a map. Everything is a look-up; what the map does not
hold stays None and keeps the reason, which names the sweep that would fill it.
"""

from __future__ import annotations

import copy
from collections import ChainMap
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass

from gacprof.checkpoint.inventory import Dim, Gemm, Inventory
from gacprof.cliffmap import CliffMap, MapMiss, detect
from gacprof.cliffmap.schema import Curve
from gacprof.diagnosing.map_dtype import choose_dtype
from gacprof.diagnosing.workload import Tokens, workload_of
from gacprof.points import Flag


@dataclass(frozen=True)
class Estimate:
    """A predicted time, or why there is none. ``scaled`` if any part was not measured exactly."""

    latency_us: float | None
    missing: str = ""
    scaled: bool = False

    def __add__(self, other: Estimate) -> Estimate:
        if self.latency_us is None or other.latency_us is None:
            return Estimate(None, self.missing or other.missing)
        return Estimate(self.latency_us + other.latency_us, "", self.scaled or other.scaled)

    def times(self, weight: float) -> Estimate:
        known = self.latency_us is not None
        return Estimate(self.latency_us * weight, "", self.scaled) if known else self  # type: ignore[operator]


NOTHING = Estimate(0.0)


class Predictor:
    """Predicted latency of GEMMs and dims on one map, summed over a workload.

    ``tokens`` maps token counts (rows of x) to weights; a latency is Σ weight · latency(M).
    ``dtype`` defaults to the checkpoint's where the map holds it, else to the map's only one;
    ``dtype_note`` then says so. ``measured_tokens`` are the token counts at which the map
    holds products of this model.
    """

    def __init__(
        self,
        cliff_map: CliffMap,
        inventory: Inventory,
        tokens: Tokens | None = None,
        dtype: str | None = None,
    ) -> None:
        self.map = cliff_map
        self.inventory = inventory
        self.tokens = workload_of(tokens)
        self.dtype, self.dtype_note = choose_dtype(cliff_map, inventory, dtype)
        self.tolerance = detect.tolerance(cliff_map.floor or 0.0)
        self._gemms: MutableMapping[str, Gemm] = {
            g.weight: g for module in inventory.modules for g in module.gemms
        }
        self._known: dict[tuple[int, int, bool], Estimate] = {}
        curves = cliff_map.select("linear", dtype=self.dtype)
        cold = any(curve.flags.get("cache") == "cold" for curve in curves)
        self._regime: dict[str, Flag] = {"cache": "cold"} if cold else {}
        self._curves = _by_fixed_dims(curves, self._regime)
        self.measured_tokens = _measured_tokens(curves, self._gemms.values())

    @property
    def tokens_note(self) -> str:
        """Which token counts the map was measured at, where those asked for are not among them."""
        measured, asked = self.measured_tokens, sorted(self.tokens)
        absent = [m for m in asked if m not in measured]
        if not measured or not absent:
            return ""
        return (
            f"the map was measured at {_listed(measured)} tokens, not at {_listed(absent)}: ask "
            f"for those (--tokens {','.join(map(str, measured[:4]))}), or measure these with "
            f"'gacprof sweep --for CHECKPOINT --tokens {','.join(map(str, asked))}'"
        )

    def gemm(self, n: int, k: int, bias: bool) -> Estimate:
        """One pass of the workload through ``y[M, n] = x[M, k] · Wᵀ``."""
        key = (n, k, bias)
        if key not in self._known:
            total = NOTHING
            for m, weight in self.tokens.items():
                total += self._one(m, n, k, bias).times(weight)
            self._known[key] = total
        return self._known[key]

    def _one(self, m: int, n: int, k: int, bias: bool) -> Estimate:
        dims = {"M": m, "N": n, "K": k}
        try:
            found = self.map.latency("linear", dims, self.dtype, self._regime | {"bias": bias})
        except MapMiss as miss:
            if not bias:
                return Estimate(None, str(miss))
            # Adding a bias costs little beside the product, but it is not the point asked for.
            without = self._one(m, n, k, bias=False)
            return Estimate(without.latency_us, without.missing, scaled=True)
        return Estimate(found.latency_us, "", found.kind != "exact")

    def beside(self, sizes: Mapping[str, int]) -> Predictor:
        """The same, with these dims at other sizes to begin with."""
        other = copy.copy(self)
        other._gemms = ChainMap({}, self._gemms)
        for name, size in sizes.items():
            for gemm in other.resized(self.inventory.dim(name), size):
                other._gemms[gemm.weight] = gemm
        return other

    def tolerance_of(self, dim: Dim) -> float:
        """Up to which penalty the dim is safe: the widest of the curves that it is judged on."""
        curves = [
            self._curve(feed.axis, m, self._gemms[feed.weight])
            for feed in dim.feeds
            for m in self.tokens
        ]
        known = [curve.tolerance for curve in curves if curve is not None]
        return max(known, default=self.tolerance)

    def mechanism(self, dim: Dim) -> str | None:
        """What serves the dim's first product at the largest token count, where it is known."""
        gemm, feed = self.resized(dim, dim.size)[0], dim.feeds[0]
        curve = self._curve(feed.axis, max(self.tokens), gemm)
        if curve is None or not curve.points.mechanism:
            return None
        named = dict(zip(curve.points.d, curve.points.mechanism, strict=True))
        number = named.get(getattr(gemm, feed.axis))
        return None if number is None else curve.mechanisms[number]

    def dim(self, dim: Dim, size: int) -> Estimate:
        """All GEMMs that ``dim`` feeds, were its size ``size`` and every other as it is."""
        total = NOTHING
        for gemm in self.resized(dim, size):
            total += self.gemm(gemm.N, gemm.K, gemm.bias)
        return total

    def product(self, weight: str) -> Estimate:
        """The GEMM of that weight, as it is."""
        gemm = self._gemms[weight]
        return self.gemm(gemm.N, gemm.K, gemm.bias)

    def resized(self, dim: Dim, size: int) -> list[Gemm]:
        """The GEMMs that ``dim`` feeds, as they would be at ``size``."""
        extra: dict[str, dict[str, int]] = {}
        for feed in dim.feeds:
            axes = extra.setdefault(feed.weight, {"N": 0, "K": 0})
            axes[feed.axis] += size - dim.size
        gemms = [(self._gemms[weight], grown) for weight, grown in extra.items()]
        return [Gemm(g.weight, g.N + d["N"], g.K + d["K"], g.bias) for g, d in gemms]

    def weights(self, changes: Mapping[str, int | None]) -> Estimate:
        """All products of the weights that have adjustable dims, with these dims resized.

        A rank that becomes None is fused away: its module is one dense product.
        """
        grown: dict[tuple[str, str], int] = {}
        for dim in self.inventory.dims:
            after = changes.get(dim.name, dim.size)
            if after is None:
                continue
            for feed in dim.feeds:
                key = (feed.weight, feed.axis)
                grown[key] = grown.get(key, 0) + after - dim.size
        total = NOTHING
        for module in self.inventory.modules:
            if not module.dims:
                continue
            gemms = [
                (
                    gemm.N + grown.get((gemm.weight, "N"), 0),
                    gemm.K + grown.get((gemm.weight, "K"), 0),
                    gemm.bias,
                )
                for gemm in module.gemms
            ]
            if any(changes.get(name, 0) is None for name in module.dims):
                first, last = module.gemms[0], module.gemms[-1]
                wide = module.out_features + grown.get((last.weight, "N"), 0)
                deep = module.in_features + grown.get((first.weight, "K"), 0)
                gemms = [(wide, deep, any(bias for _, _, bias in gemms))]
            for n, k, bias in gemms:
                total += self.gemm(n, k, bias)
        return total

    def measured_sizes(self, dim: Dim, low: int, high: int) -> list[int]:
        """Sizes within [low, high] that the map has measured for every GEMM of ``dim``."""
        common: set[int] | None = None
        for feed in dict.fromkeys(dim.feeds):
            gemm, times = self._gemms[feed.weight], dim.feeds.count(feed)
            others = getattr(gemm, feed.axis) - times * dim.size
            for m in self.tokens:
                curve = self._curve(feed.axis, m, gemm)
                grown = [d - others for d in curve.points.d] if curve else []
                sizes = {d // times for d in grown if d % times == 0}
                common = sizes if common is None else common & sizes
        return sorted(size for size in common or () if low <= size <= high)

    def _curve(self, axis: str, m: int, gemm: Gemm) -> Curve | None:
        fixed = {"M": m, "N": gemm.N, "K": gemm.K}
        fixed.pop(axis)
        key = axis, tuple(sorted(fixed.items()))
        return self._curves.get((*key, gemm.bias)) or self._curves.get((*key, False))


_CurveKey = tuple[str, tuple[tuple[str, int], ...], bool]


def _by_fixed_dims(curves: Sequence[Curve], regime: Mapping[str, Flag]) -> dict[_CurveKey, Curve]:
    """The curves of one regime by axis, fixed dims and bias; default layouts come first."""
    found: dict[_CurveKey, Curve] = {}
    for curve in curves:
        if all(curve.flags.get(name) == value for name, value in regime.items()):
            bias = bool(curve.flags.get("bias", False))
            found.setdefault((curve.axis, tuple(sorted(curve.fixed.items())), bias), curve)
    return found


def _measured_tokens(curves: Sequence[Curve], gemms: Iterable[Gemm]) -> list[int]:
    shapes = {(g.N, g.K) for g in gemms}
    sides = {"N": {k for _, k in shapes}, "K": {n for n, _ in shapes}}
    found: set[int] = set()
    for curve in curves:
        n, k, m = (curve.fixed.get(axis) for axis in "NKM")
        if curve.axis == "M" and (n, k) in shapes:
            found.update(curve.points.d)
        elif m is not None and (k if curve.axis == "N" else n) in sides[curve.axis]:
            found.add(m)
    return sorted(found)


def _listed(counts: Sequence[int]) -> str:
    return ", ".join(map(str, counts[:4])) + (f" … ({len(counts)} counts)" if counts[4:] else "")
