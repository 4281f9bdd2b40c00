"""What a measured map says of one model's products: the curves that they lie on, and their sums.

Everything is a lookup. What the map does not hold stays None and keeps the reason, which names the
sweep that would fill it; sizes on offer are those that were measured, never ones between them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import lcm

from gacprof.cliffmap.candidates import OnCurve, judge_sums
from gacprof.cliffmap.estimate import NOTHING, Estimate
from gacprof.cliffmap.lookup import Index
from gacprof.cliffmap.schema import Curve, MapFile
from gacprof.cliffmap.selection import MapLookupError, matching
from gacprof.cliffmap.source import Asked, Product, Side, SizeCost, workload_of
from gacprof.core.dtypes import choose_dtype
from gacprof.core.formatting import listed
from gacprof.core.points import MAX_DIM, Flag
from gacprof.stats.judge import TOLERANCE

NOISY = "the map is too noisy to judge by"


class MeasuredView:
    """One model's products on one map, summed over a workload.

    By default the token counts are those that the map's curves of this model were swept at,
    equally, and the dtype is the model's where the map holds it, else the map's only one; ``notes``
    then say so. ``too_noisy`` is why the map is so, ``instead`` what else answers the sizes that it
    lacks.
    """

    def __init__(
        self, file: MapFile, index: Index, asked: Asked, too_noisy: str, instead: str
    ) -> None:
        self._file, self._index, self._instead = file, index, instead
        held = {curve.dtype for curve in matching(file.curves, "linear")}
        self.dtype, note = choose_dtype(asked.dtype, asked.computed, held, file.name)
        curves = matching(file.curves, "linear", dtype=self.dtype)
        cold = any(curve.flags.get("cache") == "cold" for curve in curves)
        self.flags: Mapping[str, Flag] = {"cache": "cold"} if cold else {}
        self._curves = _by_fixed_dims(curves, self.flags)
        self.noisy = bool(too_noisy)
        self.tolerance = min((c.tolerance for c in curves), default=TOLERANCE)
        swept, self.measured_tokens = _token_counts(curves, asked.shapes)
        given = asked.tokens is None and swept
        self.tokens: dict[int, float] = (
            dict.fromkeys(swept, 1.0) if given else workload_of(asked.tokens)
        )
        self.notes = [note] if note else []
        if too_noisy:
            more = "'gacprof sweep --resume --out RUN --budget 8m' measures on"
            self.notes.append(f"{NOISY}: {too_noisy}; {more}")
        if file.unmeasured:
            self.notes.append(
                f"the map is incomplete: {len(file.unmeasured)} curves of its suite were "
                "not measured; go on with that sweep (gacprof sweep --resume --out FOLDER) and "
                "build again"
            )
        self._model = asked.model
        self._known: dict[tuple[int, int, bool, str], Estimate] = {}
        self._places: dict[Sequence[Product], list[OnCurve]] = {}
        self._sizes: dict[Sequence[Product], list[int]] = {}
        self._tables: dict[tuple[Sequence[Product], int | None], list[SizeCost]] = {}

    @property
    def tokens_note(self) -> str:
        """Which token counts the map was measured at, where those asked for are not among them."""
        measured, asked = self.measured_tokens, sorted(self.tokens)
        absent = [m for m in asked if m not in measured]
        if not measured or not absent:
            return ""
        held, wanted = ",".join(map(str, measured[:4])), ",".join(map(str, asked))
        return (
            f"the map was measured at {listed(measured, 4)} tokens, not at {listed(absent, 4)}: "
            f"ask for those (--tokens {held}), or measure these with 'gacprof sweep --for "
            f"{self._model} --tokens {wanted}'"
        )

    def latency(self, n: int, k: int, bias: bool, dtype: str = "") -> Estimate:
        return self._along("", n, k, bias)

    def _along(self, axis: str, n: int, k: int, bias: bool) -> Estimate:
        """The product's time, by a curve over that axis where one over the other crosses it."""
        key = (n, k, bias, axis)
        if key not in self._known:
            total = NOTHING
            for m, weight in self.tokens.items():
                total += self._one(m, n, k, bias, axis).times(weight)
            self._known[key] = total
        return self._known[key]

    def _one(self, m: int, n: int, k: int, bias: bool, axis: str = "") -> Estimate:
        dims, flags = {"M": m, "N": n, "K": k}, {**self.flags, "bias": bias}
        found = self._index.estimate("linear", dims, self.dtype, flags, axis)
        if found.latency_us is None and bias:
            # Adding a bias costs little beside the product, but it is not the point asked for.
            return replace(self._one(m, n, k, False, axis), scaled=True)
        return found

    def sizes(self, products: Sequence[Product], low: int, high: int) -> list[int]:
        """Those that were measured in every product. No rule offers another: a period that was
        found on few points predicts sizes that it has not seen."""
        products = tuple(products)
        if products not in self._sizes:
            places = [place.measured for place in self._on_curves(products)]
            self._sizes[products] = sorted(set.intersection(*places)) if places else []
        found = self._sizes[products]
        return found[bisect_left(found, max(low, 1)) : bisect_right(found, high)]

    def judge(
        self, products: Sequence[Product], sizes: Sequence[int], most: int | None
    ) -> list[SizeCost]:
        """Beside every size that was measured, the larger ones too. Dims of different sizes on the
        same curves share one table."""
        products, wanted = tuple(products), set(sizes)
        measured = self.sizes(products, 1, MAX_DIM)
        if wanted <= set(measured):
            key = products, most
            if key not in self._tables:
                self._tables[key] = self._judged(products, measured, most)
            table = self._tables[key]
        else:
            table = self._judged(products, sorted(wanted.union(measured)), most)
        return [cost for cost in table if cost.size in wanted]

    def _judged(
        self, products: tuple[Product, ...], sizes: Sequence[int], most: int | None
    ) -> list[SizeCost]:
        estimates = {size: self._time(products, size) for size in sizes}
        found = judge_sums(estimates, self._on_curves(products), self.tolerance, most)
        known = {row[0]: SizeCost(*row, scaled=estimates[row[0]].scaled) for row in found.rows}
        return [
            known.get(size) or SizeCost(size, missing=e.missing) for size, e in estimates.items()
        ]

    def step(self, products: Sequence[Product]) -> int:
        curves = [place.curve for place in self._on_curves(tuple(products))]
        return lcm(*(curve.period.modulus for curve in curves if curve.period))

    def mechanism(self, product: Product, size: int) -> str | None:
        m = max(self.tokens)
        for curve, side in self._curves_of(product, m):
            length = side.at(size)
            place = None if length is None else curve.points.place(length)
            if place is not None and curve.points.mechanism:
                number = curve.points.mechanism[place]
                return None if number is None else curve.mechanisms[number]
        return None

    def head_dim(self, heads: int, kv_heads: int, head_dim: int) -> tuple[SizeCost, int] | None:
        """By the map's curves of attention; the one on which it loses most, if it does on any."""
        worst: tuple[SizeCost, int] | None = None
        fixed = {"heads": heads, "kv_heads": kv_heads}
        curves = matching(self._file.curves, "attention", "head_dim", self.dtype, None, fixed)
        for curve in curves:
            place = curve.points.place(head_dim)
            least = worst[0].penalty_low or 0.0 if worst else -1.0
            if place is None or curve.points.penalty_low[place] <= least:
                continue
            p, verdict = curve.points, curve.verdicts[place]
            larger = list(zip(p.latency_us, p.d, curve.verdicts, strict=True))[place:]
            fastest = min(larger)[0]
            best = min(((t, d) for t, d, v in larger if v == "safe"), default=(0.0, head_dim))[1]
            cost = SizeCost(
                head_dim, p.latency_us[place], p.latency_us[place] / fastest - 1,
                p.penalty_low[place], p.penalty_high[place], verdict, why=curve.shape,
            )  # fmt: skip
            worst = cost, best
        return worst

    def no_better(self, products: Sequence[Product]) -> str:
        return ""  # times of single sizes differ

    def no_safe(self, products: Sequence[Product], fixed: Sequence[int]) -> str:
        return ""  # each size has its own penalty

    def _time(self, products: Sequence[Product], size: int) -> Estimate:
        """All products, with the dim at this size."""
        total = NOTHING
        for product in products:
            sides = product.at(size)
            if sides is None:
                shards = max(product.N.shards, product.K.shards)
                return Estimate(None, f"{shards} shards cannot divide {size}")
            found = self._along("N" if product.N.times else "K", *sides, product.bias)
            if found.latency_us is None:
                return Estimate(None, self._missing(product, *sides))
            total += found
        return total

    def _missing(self, product: Product, n: int, k: int) -> str:
        """Which product the map lacks, and the sweep over the dim in question that measures it."""
        shape = {"M": next(iter(self.tokens)), "N": n, "K": k}
        for m in self.tokens:
            if self._one(m, n, k, product.bias).latency_us is None:
                shape["M"] = m
                break
        why = f"the map '{self._file.name}' cannot tell the latency of linear N={n} K={k} at M={m}"
        axis = "N" if product.N.times else "K"
        flags = {**self.flags, "bias": product.bias}
        message = str(MapLookupError(why, "linear", shape, self.dtype, flags, axis))
        return f"{message}; {self._instead}" if self._instead else message

    def _on_curves(self, products: Sequence[Product]) -> list[OnCurve]:
        """The curves that the dim is swept on. Empty where one of its products has none at one of
        the token counts."""
        if products in self._places:
            return self._places[products]
        found: list[OnCurve] = []
        for product in products:
            for m in self.tokens:
                places = [OnCurve(*place) for place in self._curves_of(product, m)]
                if len(places) < bool(product.N.times) + bool(product.K.times):
                    found.clear()
                    break
                found += places
            else:
                continue
            break
        self._places[products] = found
        return found

    def _curves_of(self, product: Product, m: int) -> Iterator[tuple[Curve, Side]]:
        """The curves over the sides that the dim is on."""
        sides = {"N": product.N, "K": product.K}
        for axis, side in sides.items():
            other, met = ("K", product.K) if axis == "N" else ("N", product.N)
            fixed = None if met.times else met.at(0)
            if side.times and fixed is not None:
                key = axis, tuple(sorted({"M": m, other: fixed}.items()))
                curve = self._curves.get((*key, product.bias)) or self._curves.get((*key, False))
                if curve is not None:
                    yield curve, side


_CurveKey = tuple[str, tuple[tuple[str, int], ...], bool]


def _by_fixed_dims(curves: Sequence[Curve], regime: Mapping[str, Flag]) -> dict[_CurveKey, Curve]:
    """The curves of one regime by axis, fixed dims and bias; default layouts come first."""
    found: dict[_CurveKey, Curve] = {}
    for curve in curves:
        if all(curve.flags.get(name) == value for name, value in regime.items()):
            bias = bool(curve.flags.get("bias", False))
            found.setdefault((curve.axis, tuple(sorted(curve.fixed.items())), bias), curve)
    return found


def _token_counts(
    curves: Sequence[Curve], shapes: frozenset[tuple[int, int]]
) -> tuple[list[int], list[int]]:
    """The token counts at which curves over N or K of these products were measured, and these with
    the counts of curves over M."""
    sides = {"N": {("K", k) for _, k in shapes}, "K": {("N", n) for n, _ in shapes}}
    swept, over_m = set[int](), set[int]()
    for curve in curves:
        if curve.axis == "M":
            if (curve.fixed.get("N"), curve.fixed.get("K")) in shapes:
                over_m.update(curve.points.d)
        elif sides.get(curve.axis, set()) & curve.fixed.items():
            swept.add(curve.fixed["M"])
    return sorted(swept), sorted(swept | over_m)
