"""Latency of any shape: measured exactly, else within its tier, else a miss. Never a guess.

In this order:

1. the exact point;
2. between two measured neighbours of the same tier on the same curve;
3. the curve at the nearest other fixed dims, scaled, provided that each dim that differs
   stays within one tier on the way.

Nothing crosses a cliff, a change of kernel, or a change of residue class.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from math import gcd
from typing import Any, Literal

from gacprof.cliffmap.miss import MapMiss
from gacprof.cliffmap.residues import finest_step
from gacprof.cliffmap.schema import Curve, LonePoint, MapFile
from gacprof.cliffmap.selection import complete_dims, dims_distance, flag_distance
from gacprof.points import Flag

WIDEST_GAP = 1.25
"""Between neighbours further apart than this ratio nothing is filled in: a coarse sweep does
not show what lies between its dims."""

BLIND_RATIO = 2.0
"""How far work scales a dim along which the map holds no curve, and that only between
multiples of :data:`BLIND_MULTIPLE`."""

BLIND_MULTIPLE = 128
"""Tile edges of the GEMM kernels divide it or are twice it; at its multiples no alignment
differs. Wave quantisation may, hence the mark ``scaled``."""


@dataclass(frozen=True)
class Lookup:
    """A latency with its bounds (None where the source gives none) and where it comes from.

    ``kind`` is ``exact`` for a measured point, else ``scaled``. ``source`` names the curve
    and what was done.
    """

    latency_us: float
    low_us: float | None
    high_us: float | None
    kind: Literal["exact", "scaled"]
    source: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Index:
    """Look-ups over a map's curves; exact ones in constant time, whatever the map's size."""

    def __init__(self, file: MapFile) -> None:
        self._name = file.name
        self._curves: dict[tuple, list[Curve]] = defaultdict(list)
        self._by_axis: dict[tuple, list[Curve]] = defaultdict(list)
        for curve in file.curves:
            self._curves[_curve_key(curve)].append(curve)
            self._by_axis[curve.operator, curve.axis, curve.dtype].append(curve)
        self._lone: dict[tuple, list[LonePoint]] = defaultdict(list)
        for point in file.lone:
            key = (point.operator, point.dtype, tuple(sorted(point.dims.items())))
            self._lone[key].append(point)
        self._positions: dict[int, dict[int, int]] = {}

    def find(
        self,
        operator: str,
        dims: Mapping[str, int],
        dtype: str,
        flags: Mapping[str, Flag] | None = None,
    ) -> Lookup:
        """The latency at these dims. Raises :class:`MapMiss` where the map cannot say."""
        full, asked = complete_dims(operator, dims), flags or {}
        query = _Query(operator, full, dtype, asked)
        found = self._exact(query) or self._within(query) or self._scaled(query)
        if found is None:
            shape = " ".join(f"{name}={size}" for name, size in sorted(full.items()))
            raise MapMiss(
                f"the map '{self._name}' cannot tell the latency of {operator} {shape} {dtype}",
                operator=operator,
                dims=full,
                dtype=dtype,
                flags=asked,
            )
        return found

    def _exact(self, query: _Query) -> Lookup | None:
        hits: list[tuple[tuple[int, int], Lookup]] = []
        for axis, size in query.dims.items():
            for curve in self._curves.get(query.key(axis), ()):
                place = self._position(curve).get(size)
                distance = query.distance(curve.flags)
                if place is not None and distance is not None:
                    p = curve.points
                    found = p.median_us[place], p.low_us[place], p.high_us[place]
                    hits.append((distance, Lookup(*found, "exact", curve.identity)))
        for point in self._lone.get(query.point_key, ()):
            distance = query.distance(point.flags)
            if distance is not None:
                found = point.median_us, point.low_us, point.high_us
                hits.append((distance, Lookup(*found, "exact", "a point of its own")))
        return min(hits, key=lambda hit: hit[0])[1] if hits else None

    def _within(self, query: _Query) -> Lookup | None:
        hits = [
            (distance, found)
            for axis, size in query.dims.items()
            for curve in self._curves.get(query.key(axis), ())
            if (distance := query.distance(curve.flags)) is not None
            and (found := between(curve, size)) is not None
        ]
        return min(hits, key=lambda hit: hit[0])[1] if hits else None

    def _scaled(self, query: _Query) -> Lookup | None:
        """From the nearest other fixed dims along the first axis that can bridge the way."""
        options = []
        for axis in query.dims:
            for curve in self._by_axis.get((query.operator, axis, query.dtype), ()):
                distance = query.distance(curve.flags)
                if distance is not None and set(curve.fixed) == query.others(axis):
                    options.append((distance, dims_distance(curve.fixed, query.dims_but(axis)),
                                    curve.identity, curve))  # fmt: skip
        for _, _, _, curve in sorted(options, key=lambda option: option[:3]):
            found = self._carried_over(curve, query)
            if found is not None:
                return found
        return None

    def _carried_over(self, curve: Curve, query: _Query) -> Lookup | None:
        size = query.dims[curve.axis]
        place = self._position(curve).get(size)
        p = curve.points
        if place is not None:
            here = Lookup(
                p.median_us[place], p.low_us[place], p.high_us[place], "exact", curve.identity
            )
        elif (filled := between(curve, size)) is not None:
            here = filled
        else:
            return None
        factor, steps = 1.0, []
        for name, there in curve.fixed.items():
            wanted = query.dims[name]
            if wanted == there:
                continue
            ratio = self._ratio(query, name, there, wanted)
            if ratio is None:
                return None
            factor *= ratio
            steps.append(f"{name} {there} → {wanted}: ×{ratio:.3f}")
        low, high = here.low_us, here.high_us
        return Lookup(
            here.latency_us * factor,
            None if low is None else low * factor,
            None if high is None else high * factor,
            "scaled",
            f"{here.source}, {', '.join(steps)}",
        )

    def _ratio(self, query: _Query, name: str, there: int, wanted: int) -> float | None:
        """latency(wanted) / latency(there) along ``name``: measured, or by work within a tier."""
        curves = [
            c
            for c in self._by_axis.get((query.operator, name, query.dtype), ())
            if query.distance(c.flags) is not None and set(c.fixed) == query.others(name)
        ]
        spanning = [c for c in curves if c.points.d[0] <= min(there, wanted)]
        spanning = [c for c in spanning if max(there, wanted) <= c.points.d[-1]]
        if spanning:
            fixed = query.dims_but(name)
            curve = min(spanning, key=lambda c: (dims_distance(c.fixed, fixed), c.identity))
            return _ratio_on(curve, there, wanted, self._position(curve))
        blind = max(there, wanted) / min(there, wanted) <= BLIND_RATIO
        if blind and gcd(there, wanted) % BLIND_MULTIPLE == 0:
            return wanted / there
        return None

    def _position(self, curve: Curve) -> dict[int, int]:
        places = self._positions.get(id(curve))
        if places is None:
            places = {d: i for i, d in enumerate(curve.points.d)}
            self._positions[id(curve)] = places
        return places


@dataclass(frozen=True)
class _Query:
    operator: str
    dims: dict[str, int]
    dtype: str
    flags: Mapping[str, Flag]

    def dims_but(self, axis: str) -> dict[str, int]:
        return {name: size for name, size in self.dims.items() if name != axis}

    def others(self, axis: str) -> set[str]:
        return set(self.dims) - {axis}

    def key(self, axis: str) -> tuple:
        return self.operator, axis, self.dtype, tuple(sorted(self.dims_but(axis).items()))

    @cached_property
    def point_key(self) -> tuple:
        return self.operator, self.dtype, tuple(sorted(self.dims.items()))

    def distance(self, flags: Mapping[str, Flag]) -> tuple[int, int] | None:
        return flag_distance(self.operator, flags, self.flags)


def _curve_key(curve: Curve) -> tuple:
    return curve.operator, curve.axis, curve.dtype, tuple(sorted(curve.fixed.items()))


def between(curve: Curve, d: int) -> Lookup | None:
    """Linear between the two measured neighbours of d's tier; None where d is in no one tier."""
    tiers = [tier for tier in curve.tiers if tier.holds(d)]
    dims, latency = curve.points.d, curve.points.median_us
    if len(tiers) != 1 or not _on_grid(dims, d):
        return None
    members = [i for i, size in enumerate(dims) if tiers[0].holds(size)]
    place = bisect_left(members, d, key=lambda i: dims[i])
    before, after = members[place - 1], members[place]
    a, b = dims[before], dims[after]
    if b / a > WIDEST_GAP:
        return None
    share = (d - a) / (b - a)
    middle = latency[before] + share * (latency[after] - latency[before])
    lows = [low for low in (curve.points.low_us[before], curve.points.low_us[after]) if low]
    highs = [high for high in (curve.points.high_us[before], curve.points.high_us[after]) if high]
    return Lookup(
        middle,
        min([*lows, middle]) if lows else None,
        max([*highs, middle]) if highs else None,
        "scaled",
        f"{curve.identity}, between {curve.axis}={a} and {b} of the tier '{tiers[0].name}'",
    )


def _on_grid(dims: list[int], d: int) -> bool:
    """Whether d has the residue of the measured dims: a sweep in steps says nothing of others."""
    return (d - dims[0]) % finest_step(dims) == 0


def _ratio_on(curve: Curve, there: int, wanted: int, position: Mapping[int, int]) -> float | None:
    """The measured growth from one dim to the other, provided that one tier holds both."""
    if not any(tier.holds(there) and tier.holds(wanted) for tier in curve.tiers):
        return None
    latency = curve.points.median_us
    ends = []
    for d in (there, wanted):
        if d in position:
            ends.append(latency[position[d]])
        elif (filled := between(curve, d)) is not None:
            ends.append(filled.latency_us)
        else:
            return None
    return ends[1] / ends[0]
