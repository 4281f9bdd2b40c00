"""Latency of any shape: measured exactly, else within its tier, else an error. Never a guess.

In this order:

1. the exact point;
2. between two measured neighbours of the same tier on the same curve;
3. the curve at the nearest other fixed dims, scaled, provided that each dim that differs
   stays within one tier on the way.

Nothing crosses a cliff, a change of mechanism, or a change of residue class.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from heapq import nsmallest
from math import gcd, inf, log
from typing import Any, Literal

from gacprof.cliffmap.estimate import Estimate
from gacprof.cliffmap.schema import Curve, IsolatedPoint, MapFile
from gacprof.cliffmap.selection import (
    MapLookupError,
    complete_dims,
    dims_distance,
    flag_distance,
)
from gacprof.core.points import Flag
from gacprof.stats.judge import WIDEST_GAP, finest_step, quantile

AROUND_A_HOLE = (-2, -1, 1, 2)
"""On a curve without a period only single missing dims are filled in, where the dims so many of
the sweep's finest steps away were measured: across a wider hole nothing shows that the residues
which were not visited fare as those that were (on CPU sweeps that was up to 15 % wrong), and the
next ones alone are both even where the hole is odd."""

WIDEST_STEP = 1.1
"""Between neighbours whose latencies differ by more than this ratio nothing is filled in. A
gap of dims hides a cliff as large as the work grows over it (72 to 88: 22 %), and halfway
across one the answer would be off by half of it. At this ratio it is off by 5 % at most."""

WORK_RATIO = 2.0
"""How far work scales a dim along which the map holds no curve, and that only between
multiples of :data:`WORK_MULTIPLE`."""

WORK_MULTIPLE = 128
"""Tile edges of the GEMM kernels divide it or are twice it; at its multiples no alignment
differs. Wave quantisation may, hence the mark ``scaled``."""

NEAREST = 4
"""How many of the nearest curves of an axis are tried."""


@dataclass(frozen=True)
class Lookup:
    """A latency with its bounds (None where the source gives none) and where it comes from.

    ``kind`` is ``exact`` for a measured point, else ``scaled``. ``source`` names the curve
    and what was done. ``unbounded`` marks a point that was measured too seldom for bounds: its
    error may be anything. Bounds are Student's (95 %) with so many ``degrees`` of freedom.
    """

    latency_us: float
    low_us: float | None
    high_us: float | None
    kind: Literal["exact", "scaled"]
    source: str
    unbounded: bool = False
    degrees: float = inf

    @property
    def error(self) -> float | None:
        """The relative standard error beside the curve's other dims: infinite where the point was
        measured too seldom, None where the source gives no spread at all."""
        if self.unbounded:
            return inf
        if self.low_us is None or self.high_us is None:
            return None
        return log(self.high_us / self.low_us) / (2 * quantile(0.025, self.degrees))

    @property
    def estimate(self) -> Estimate:
        error = self.error
        variance = None if error is None else (error * self.latency_us) ** 2
        scaled = self.kind != "exact"
        return Estimate(self.latency_us, "", scaled, variance, degrees=self.degrees)


def measured(curve: Curve, d: int) -> Lookup | None:
    """The latency at a dim of the curve, if that was measured."""
    p = curve.points
    place = p.place(d)
    if place is None:
        return None
    found = p.latency_us[place], p.low_us[place], p.high_us[place]
    return Lookup(*found, "exact", curve.identity, degrees=p.freedom(place))


def between(curve: Curve, d: int) -> Lookup | None:
    """Linear between the two measured neighbours of d's tier; None where d is in no one tier."""
    tiers = [tier for tier in curve.tiers if tier.holds(d)]
    p, dims, latency = curve.points, curve.points.d, curve.points.latency_us
    step = finest_step(dims)
    # A sweep in steps says nothing of residues that it never visited.
    if len(tiers) != 1 or (d - dims[0]) % step:
        return None
    members = [i for i, size in enumerate(dims) if tiers[0].holds(size)]
    place = bisect_left(members, d, key=lambda i: dims[i])
    before, after = members[place - 1], members[place]
    a, b = dims[before], dims[after]
    if b / a > WIDEST_GAP:
        return None
    ends: list[int | None] = [before, after]
    if curve.period is None:
        ends = [p.place(d + step * steps) for steps in AROUND_A_HOLE]
    around = [latency[end] for end in ends if end is not None]
    if len(around) < len(ends) or max(around) > WIDEST_STEP * min(around):
        return None
    middle = latency[before] + (d - a) / (b - a) * (latency[after] - latency[before])
    lows = [low for low in (p.low_us[before], p.low_us[after]) if low]
    highs = [high for high in (p.high_us[before], p.high_us[after]) if high]
    return Lookup(
        middle,
        min([*lows, middle]) if lows else None,
        max([*highs, middle]) if highs else None,
        "scaled",
        f"{curve.identity}, between {curve.axis}={a} and {b} of the tier '{tiers[0].name}'",
        degrees=min(p.freedom(before), p.freedom(after)),
    )


def _at(curve: Curve, d: int) -> Lookup | None:
    return measured(curve, d) or between(curve, d)


@dataclass(frozen=True)
class _Query:
    """All dims of an operator, spelt out; flags only as far as they were asked for. Curves over
    the axis ``along`` answer first."""

    operator: str
    dims: dict[str, int]
    dtype: str
    flags: Mapping[str, Flag]
    along: str

    def but(self, axis: str) -> dict[str, int]:
        """The dims without one."""
        return {name: size for name, size in self.dims.items() if name != axis}

    def distance(self, flags: Mapping[str, Flag]) -> tuple[int, int] | None:
        return flag_distance(self.operator, flags, self.flags)


class Index:
    """Look-ups over a map's curves; exact ones in constant time, whatever the map's size."""

    def __init__(self, file: MapFile) -> None:
        self._name = file.name
        self._measured = file.provenance.kind == "measured"
        self._through: dict[tuple[Any, ...], list[Curve]] = defaultdict(list)
        self._alike: dict[tuple[Any, ...], list[Curve]] = defaultdict(list)
        for curve in file.curves:
            self._through[_through(curve, curve.axis, curve.fixed)].append(curve)
            self._alike[_alike(curve, curve.axis, curve.fixed)].append(curve)
        self._isolated: dict[tuple[Any, ...], list[IsolatedPoint]] = defaultdict(list)
        for point in file.isolated:
            self._isolated[_through(point, "", point.dims)].append(point)

    def find(
        self,
        operator: str,
        dims: Mapping[str, int],
        dtype: str,
        flags: Mapping[str, Flag] | None = None,
        along: str = "",
    ) -> Lookup:
        """The latency at these dims. Raises :class:`MapLookupError` where the map cannot say.

        Of curves that cross there the one over ``along`` answers: errors are beside a curve's other
        dims, so that sizes which are compared are to be of one curve.
        """
        query = _Query(operator, complete_dims(operator, dims), dtype, flags or {}, along)
        curves = list(self._curves_through(query))
        near = ((distance, between(c, query.dims[c.axis])) for distance, c in curves)
        found = self._exact(query, curves) or _nearest_flags(near) or self._scaled(query)
        if found is None:
            shape = " ".join(f"{name}={size}" for name, size in sorted(query.dims.items()))
            raise MapLookupError(
                f"the map '{self._name}' cannot tell the latency of {operator} {shape} {dtype}",
                operator, query.dims, dtype, flags,
            )  # fmt: skip
        unbounded = self._measured and found.low_us is None
        return replace(found, unbounded=True) if unbounded else found

    def estimate(
        self,
        operator: str,
        dims: Mapping[str, int],
        dtype: str,
        flags: Mapping[str, Flag],
        along: str = "",
    ) -> Estimate:
        """The same with its error, or what is missing to tell it."""
        try:
            return self.find(operator, dims, dtype, flags, along).estimate
        except MapLookupError as error:
            return Estimate(None, str(error))

    def _curves_through(self, query: _Query) -> Iterator[tuple[tuple[int, int], Curve]]:
        """The curves that run through the point, whether or not they hold it."""
        for axis in sorted(query.dims, key=lambda axis: axis != query.along):
            for curve in self._through.get(_through(query, axis, query.but(axis)), ()):
                distance = query.distance(curve.flags)
                if distance is not None:
                    yield distance, curve

    def _exact(
        self, query: _Query, curves: Iterable[tuple[tuple[int, int], Curve]]
    ) -> Lookup | None:
        hits = [(distance, measured(c, query.dims[c.axis])) for distance, c in curves]
        for p in self._isolated.get(_through(query, "", query.dims), ()):
            distance = query.distance(p.flags)
            if distance is not None:
                found = Lookup(p.latency_us, p.low_us, p.high_us, "exact", "a point of its own")
                hits.append((distance, found))
        return _nearest_flags(hits)

    def _scaled(self, query: _Query) -> Lookup | None:
        """From the curve at the nearest fixed dims whose way to these dims stays in one tier."""
        options = []
        for (operator, axis, dtype, flags, names), curves in self._alike.items():
            if (operator, dtype) != (query.operator, query.dtype):
                continue
            distance = query.distance(dict(flags))
            if distance is None or {*names, axis} != set(query.dims):
                continue
            size, wanted = query.dims[axis], query.but(axis)
            covering = (c for c in curves if c.points.d[0] <= size <= c.points.d[-1])
            near = ((distance, dims_distance(c.fixed, wanted), c.identity, c) for c in covering)
            options += nsmallest(NEAREST, near, key=lambda option: option[:3])
        for *_, curve in sorted(options, key=lambda option: option[:3]):
            found = self._scaled_from(curve, query)
            if found is not None:
                return found
        return None

    def _scaled_from(self, curve: Curve, query: _Query) -> Lookup | None:
        here = _at(curve, query.dims[curve.axis])
        if here is None:
            return None
        factor, steps, unmeasured = 1.0, [], 0
        for name, there in curve.fixed.items():
            wanted = query.dims[name]
            if wanted == there:
                continue
            low, high = sorted((there, wanted))
            alike = self._alike.get(_alike(curve, name, query.but(name)), ())
            spanning = [c for c in alike if c.points.d[0] <= low and high <= c.points.d[-1]]
            if spanning:
                ratio = _measured_ratio(spanning, query, name, there)
            else:  # by work alone, along a dim over which no curve leads this way
                far = high / low > WORK_RATIO or gcd(there, wanted) % WORK_MULTIPLE
                ratio, unmeasured = None if far else wanted / there, unmeasured + 1
            if ratio is None or unmeasured > 1:
                return None
            factor *= ratio
            steps.append(f"{name} {there} → {wanted}: ×{ratio:.3f}")
        return replace(
            here,
            latency_us=here.latency_us * factor,
            low_us=None if here.low_us is None else here.low_us * factor,
            high_us=None if here.high_us is None else here.high_us * factor,
            kind="scaled",
            source=", ".join([here.source, *steps]),
        )


def _measured_ratio(spanning: list[Curve], query: _Query, name: str, there: int) -> float | None:
    """latency(wanted) / latency(there) on the nearest curve over ``name``, in one tier.

    Of the other near ones too: a dim that is badly served already hides the cliffs of the
    others, and the nearest curve may be fixed at such a dim.
    """
    others, wanted = query.but(name), query.dims[name]
    near = nsmallest(NEAREST, spanning, key=lambda c: (dims_distance(c.fixed, others), c.identity))
    for curve in near:
        if not any(tier.holds(there) and tier.holds(wanted) for tier in curve.tiers):
            return None
    start, end = _at(near[0], there), _at(near[0], wanted)
    return end.latency_us / start.latency_us if start and end else None


def _nearest_flags(hits: Iterable[tuple[tuple[int, int], Lookup | None]]) -> Lookup | None:
    found = ((distance, hit) for distance, hit in hits if hit is not None)
    return min(found, key=lambda hit: hit[0], default=(None, None))[1]


def _through(of: Curve | IsolatedPoint | _Query, axis: str, fixed: Mapping[str, int]) -> tuple:
    """What curves over an axis have in common that run through one point."""
    return of.operator, axis, of.dtype, tuple(sorted(fixed.items()))


def _alike(curve: Curve, axis: str, fixed: Iterable[str]) -> tuple:
    """What curves have in common that differ in sizes only."""
    flags = tuple(sorted(curve.flags.items()))
    return curve.operator, axis, curve.dtype, flags, tuple(sorted(fixed))
