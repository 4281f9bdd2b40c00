"""What the map says a model's matrix products cost, at the token counts that will be served.

The only place where an inventory and a map come together. Everything is a lookup; what the map
does not hold stays None and keeps the reason, which names the sweep that would fill it.

What will be served: token counts with weights.
"""

from __future__ import annotations

import copy
from bisect import bisect_left, bisect_right
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence, Set
from dataclasses import dataclass, replace
from math import lcm, sqrt
from numbers import Real
from typing import Any, TypeVar

from gacprof.checkpoint.inventory import Dim, Gemm, Inventory
from gacprof.cliffmap import CliffMap, MapLookupError
from gacprof.cliffmap.judge import TOLERANCE, settled_of_sum
from gacprof.cliffmap.schema import Curve
from gacprof.core.dtypes import choose_dtype
from gacprof.core.errors import PlanError
from gacprof.core.points import Flag

T = TypeVar("T")


@dataclass(frozen=True)
class Estimate:
    """A predicted time, or why there is none. ``scaled`` if any part was not measured exactly.

    ``variance`` is that of the time in µs², of what the map's errors tell; None where the map
    gives no error for a part.
    """

    latency_us: float | None
    missing: str = ""
    scaled: bool = False
    variance: float | None = None

    @property
    def error(self) -> float | None:
        """The relative standard error."""
        if self.latency_us is None or self.variance is None:
            return None
        return sqrt(self.variance) / self.latency_us if self.latency_us else 0.0

    def __add__(self, other: Estimate) -> Estimate:
        if self.latency_us is None or other.latency_us is None:
            return Estimate(None, self.missing or other.missing)
        known = self.variance is not None and other.variance is not None
        variance = (self.variance or 0.0) + (other.variance or 0.0) if known else None
        return Estimate(
            self.latency_us + other.latency_us, "", self.scaled or other.scaled, variance
        )

    def times(self, weight: float) -> Estimate:
        if self.latency_us is None:
            return self
        variance = None if self.variance is None else self.variance * weight**2
        return Estimate(self.latency_us * weight, "", self.scaled, variance)


NOTHING = Estimate(0.0, variance=0.0)


@dataclass(frozen=True)
class _OnCurve:
    """Where a dim stands on a curve: its size counts ``times`` there, beside ``others``."""

    curve: Curve
    others: int
    times: int

    def settled_among(self, sizes: Sequence[int]) -> list[bool]:
        return self.curve.settled_among([self.others + self.times * size for size in sizes])

    @property
    def measured(self) -> set[int]:
        """The sizes that the curve has measured."""
        grown = (d - self.others for d in self.curve.points.d)
        return {size // self.times for size in grown if size % self.times == 0}


class Predictor:
    """Predicted latency of GEMMs and dims on one map, summed over a workload.

    ``tokens`` maps token counts (rows of x) to weights; a latency is Σ weight · latency(M). By
    default they are the counts that the map's curves of this model were swept at, equally.
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
        held = {curve.dtype for curve in cliff_map.select("linear")}
        stored = inventory.main_dtype or "float16"
        self.dtype, self.dtype_note = choose_dtype(dtype, stored, held, cliff_map.name)
        self._gemms: MutableMapping[str, Gemm] = {
            g.weight: g for module in inventory.modules for g in module.gemms
        }
        self._known: dict[tuple[int, int, bool], Estimate] = {}
        self._sums: dict[tuple[tuple[int, int, bool], ...], Estimate] = {}
        self.memo: dict[object, Any] = {}
        curves = cliff_map.select("linear", dtype=self.dtype)
        cold = any(curve.flags.get("cache") == "cold" for curve in curves)
        self._regime: dict[str, Flag] = {"cache": "cold"} if cold else {}
        self._curves = _by_fixed_dims(curves, self._regime)
        self.noisy = bool(cliff_map.too_noisy)
        self.tolerance = min((c.tolerance for c in curves), default=TOLERANCE)
        swept, self.measured_tokens = _token_counts(curves, self._gemms.values())
        self.tokens = dict.fromkeys(swept, 1.0) if tokens is None and swept else workload_of(tokens)

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
            f"'gacprof sweep --for {self.inventory.path} --tokens {','.join(map(str, asked))}'"
        )

    def once(self, key: object, make: Callable[[], T]) -> T:
        """What was derived for dims, by shape, or is now; copies of the predictor share it."""
        if key not in self.memo:
            self.memo[key] = make()
        found: T = self.memo[key]
        return found

    def gemm(self, n: int, k: int, bias: bool) -> Estimate:
        """One pass of the workload through ``y[M, n] = x[M, k] · Wᵀ``."""
        key = (n, k, bias)
        if key not in self._known:
            total = NOTHING
            for m, weight in self.tokens.items():
                total += self._one(m, n, k, bias).times(weight)
            self._known[key] = total
        return self._known[key]

    def gemms(self, gemms: Sequence[Gemm]) -> Estimate:
        """These products, one after another."""
        key = tuple((gemm.N, gemm.K, gemm.bias) for gemm in gemms)
        if key not in self._sums:
            self._sums[key] = sum((self.gemm(*shape) for shape in key), NOTHING)
        return self._sums[key]

    def _one(self, m: int, n: int, k: int, bias: bool) -> Estimate:
        dims = {"M": m, "N": n, "K": k}
        try:
            found = self.map.latency("linear", dims, self.dtype, self._regime | {"bias": bias})
        except MapLookupError as miss:
            if not bias:
                return Estimate(None, str(miss))
            # Adding a bias costs little beside the product, but it is not the point asked for.
            return replace(self._one(m, n, k, bias=False), scaled=True)
        variance = None if found.error is None else (found.error * found.latency_us) ** 2
        return Estimate(found.latency_us, "", found.kind != "exact", variance)

    def beside(self, sizes: Mapping[str, int]) -> Predictor:
        """The same, with these dims at other sizes to begin with."""
        other = copy.copy(self)
        other._gemms = ChainMap({}, self._gemms)
        for name, size in sizes.items():
            for gemm in other.resized(self.inventory.dim(name), size):
                other._gemms[gemm.weight] = gemm
        return other

    def settled(self, dim: Dim, sizes: Sequence[int], latency_us: Sequence[float]) -> list[bool]:
        """Which of these sizes, of these times on all of the dim's curves together, are settled;
        all where it has none."""
        found = [(p.settled_among(sizes), p.curve.foretells) for p in self._curves_of(dim)]
        if not found:
            return [True] * len(sizes)
        return settled_of_sum(sizes, latency_us, found, self.tolerance)

    def measured_sizes(self, dim: Dim, low: int, high: int) -> list[int]:
        """The sizes within [low, high] that were measured in every GEMM of ``dim``. No rule offers
        another: a period that was found on few points foretells sizes that it has not seen."""

        def measured() -> list[int]:
            places = [place.measured for place in self._curves_of(dim)]
            return sorted(set.intersection(*places)) if places else []

        sizes = self.once(("measured", self.curves_like(dim)), measured)
        return sizes[bisect_left(sizes, max(low, 1)) : bisect_right(sizes, high)]

    def period(self, dim: Dim) -> int:
        """The least common multiple of the periods of the dim's curves; 1 where none has any."""
        found = [p.curve.period.modulus for p in self._curves_of(dim) if p.curve.period]
        return lcm(*found) if found else 1

    def _curves_of(self, dim: Dim) -> list[_OnCurve]:
        """The curves that the dim is swept on. Empty where one of its GEMMs has none at one of
        the token counts."""
        found = []
        for feed in dict.fromkeys(dim.feeds):
            gemm, times = self._gemms[feed.weight], dim.feeds.count(feed)
            others = getattr(gemm, feed.axis) - times * dim.size
            for m in self.tokens:
                curve = self._curve(feed.axis, m, gemm)
                if curve is None:
                    return []
                found.append(_OnCurve(curve, others, times))
        return found

    def mechanism(self, dim: Dim) -> str | None:
        """What serves the dim's first product at the largest token count, where it is known."""
        gemm, feed = self.resized(dim, dim.size)[0], dim.feeds[0]
        curve = self._curve(feed.axis, max(self.tokens), gemm)
        if curve is None or not curve.points.mechanism:
            return None
        place = curve.points.place(getattr(gemm, feed.axis))
        number = None if place is None else curve.points.mechanism[place]
        return None if number is None else curve.mechanisms[number]

    def dim(self, dim: Dim, size: int) -> Estimate:
        """All GEMMs that ``dim`` feeds, were its size ``size`` and every other as it is."""
        return self.gemms(self.resized(dim, size))

    def product(self, weight: str) -> Estimate:
        """The GEMM of that weight, as it is."""
        gemm = self._gemms[weight]
        return self.gemm(gemm.N, gemm.K, gemm.bias)

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

    def curves_like(self, dim: Dim) -> object:
        """What the dim's latency at any size follows from: its products but for its own size."""
        size = dim.size
        return tuple((g.N - n * size, g.K - k * size, g.bias, n, k) for g, n, k in self._fed(dim))

    def shape_of(self, dim: Dim) -> object:
        """What the dim's latencies follow from: the same for equal layers."""
        products = tuple((g.N, g.K, g.bias, n, k) for g, n, k in self._fed(dim))
        return dim.size, dim.most, products

    def weights(self, changes: Mapping[str, int | None]) -> Estimate:
        """All products of the weights that have adjustable dims, with these dims resized.

        A rank that becomes None is fused away: its module is one dense product.
        """
        near = self.beside({name: size for name, size in changes.items() if size is not None})
        total = NOTHING
        for module in self.inventory.modules:
            if not module.dims:
                continue
            gemms = [near._gemms[gemm.weight] for gemm in module.gemms]
            if any(changes.get(name, 0) is None for name in module.dims):
                wide = module.out_features + gemms[-1].N - module.gemms[-1].N
                deep = module.in_features + gemms[0].K - module.gemms[0].K
                gemms = [Gemm(module.name, wide, deep, any(gemm.bias for gemm in gemms))]
            for gemm in gemms:
                total += self.gemm(gemm.N, gemm.K, gemm.bias)
        return total

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


def _token_counts(curves: Sequence[Curve], gemms: Iterable[Gemm]) -> tuple[list[int], list[int]]:
    """The token counts at which curves over N or K of these GEMMs were measured, and these with
    the counts of curves over M."""
    shapes = {(g.N, g.K) for g in gemms}
    sides = {"N": {("K", k) for _, k in shapes}, "K": {("N", n) for n, _ in shapes}}
    swept, along_m = set[int](), set[int]()
    for curve in curves:
        if curve.axis == "M":
            if (curve.fixed.get("N"), curve.fixed.get("K")) in shapes:
                along_m.update(curve.points.d)
        elif sides.get(curve.axis, set()) & curve.fixed.items():
            swept.add(curve.fixed["M"])
    return sorted(swept), sorted(swept | along_m)


def _listed(counts: Sequence[int]) -> str:
    return ", ".join(map(str, counts[:4])) + (f" … ({len(counts)} counts)" if counts[4:] else "")


DEFAULT_TOKENS: Mapping[int, float] = {1: 1.0, 1024: 1.0}
"""One decode step and one prefill of 1024 tokens (the papers' sequence length), equally."""

Tokens = Mapping[int, float] | Sequence[int]
"""Token counts and their weights; counts alone weigh 1 each."""


def workload_of(tokens: Tokens | None) -> dict[int, float]:
    """``{1: 0.9, 1024: 0.1}`` or ``[1, 1024]`` as counts with weights; None is the default.

    Raises :class:`PlanError` for anything but a list of positive counts.
    """
    if tokens is None:
        return dict(DEFAULT_TOKENS)
    if isinstance(tokens, str | bytes) or not isinstance(tokens, Mapping | Sequence | Set):
        raise PlanError(
            f"the tokens are {tokens!r}: give counts such as [1, 1024], or counts with weights "
            "such as {1: 0.9, 1024: 0.1}"
        )
    pairs = tokens.items() if isinstance(tokens, Mapping) else [(count, 1.0) for count in tokens]
    if not pairs:
        raise PlanError("no token counts were given: leave tokens out for 1 and 1024, or name some")
    for count, weight in pairs:
        known = is_number(count, int) and is_number(weight)
        if not known or count <= 0 or not 0 < weight < float("inf"):
            raise PlanError(
                f"the workload {tokens} needs positive token counts (whole numbers) and weights"
            )
    return {int(count): float(weight) for count, weight in pairs}


def is_number(value: object, kind: type = Real) -> bool:
    """Whether the value is a number of that kind; True and False are none."""
    return isinstance(value, kind) and not isinstance(value, bool)
