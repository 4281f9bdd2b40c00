"""Carry a latency from the nearest fixed dims to those asked for, never across a cliff."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from heapq import nsmallest
from math import gcd

from gacprof.cliffmap.query import Lookup, Query
from gacprof.cliffmap.schema import Curve
from gacprof.cliffmap.selection import dims_distance
from gacprof.cliffmap.within import at
from gacprof.core.points import Flag

BLIND_RATIO = 2.0
"""How far work scales a dim along which the map holds no curve, and that only between
multiples of :data:`BLIND_MULTIPLE`."""

BLIND_MULTIPLE = 128
"""Tile edges of the GEMM kernels divide it or are twice it; at its multiples no alignment
differs. Wave quantisation may, hence the mark ``scaled``."""

NEAREST = 4
"""How many of the nearest curves of an axis are tried."""

_Group = tuple[str, str, str, tuple[tuple[str, Flag], ...], tuple[str, ...]]


class Scaling:
    """The curves of a map in groups of one operator, axis, dtype, flags and dims' names."""

    def __init__(self, curves: Iterable[Curve]) -> None:
        self._groups: dict[_Group, list[Curve]] = defaultdict(list)
        for curve in curves:
            self._groups[_group(curve, curve.axis, curve.fixed)].append(curve)

    def carry(self, query: Query) -> Lookup | None:
        """From the curve at the nearest fixed dims whose way to these dims stays in one tier."""
        options = []
        for group, curves in self._groups.items():
            operator, axis, dtype, flags, names = group
            if (operator, dtype) != (query.operator, query.dtype):
                continue
            distance = query.distance(dict(flags))
            if distance is not None and {*names, axis} == set(query.dims):
                wanted = query.but(axis)
                options += [
                    (distance, *near) for near in self._nearest(curves, wanted, query.dims[axis])
                ]
        for _, _, _, curve in sorted(options, key=lambda option: option[:3]):
            found = self._carried(curve, query)
            if found is not None:
                return found
        return None

    @staticmethod
    def _nearest(
        curves: list[Curve], wanted: Mapping[str, int], size: int
    ) -> list[tuple[float, str, Curve]]:
        covering = (c for c in curves if c.points.d[0] <= size <= c.points.d[-1])
        found = [(dims_distance(c.fixed, wanted), c.identity, c) for c in covering]
        return nsmallest(NEAREST, found, key=lambda entry: entry[:2])

    def _carried(self, curve: Curve, query: Query) -> Lookup | None:
        here = at(curve, query.dims[curve.axis])
        if here is None:
            return None
        factor, steps, blind = 1.0, [], 0
        for name, there in curve.fixed.items():
            wanted = query.dims[name]
            if wanted == there:
                continue
            ratio = self._measured_ratio(curve, query, name, there)
            if ratio is None:
                ratio, blind = self._blind_ratio(curve, query, name, there), blind + 1
            if ratio is None or blind > 1:
                return None
            factor *= ratio
            steps.append(f"{name} {there} → {wanted}: ×{ratio:.3f}")
        return here.times(factor, ", ".join(steps))

    def _along(self, curve: Curve, query: Query, name: str, there: int) -> list[Curve]:
        """Curves over ``name``, of the same flags, that hold both ends of the way."""
        low, high = sorted((there, query.dims[name]))
        group = _group(curve, name, query.but(name))
        return [
            c
            for c in self._groups.get(group, ())
            if c.points.d[0] <= low and high <= c.points.d[-1]
        ]

    def _measured_ratio(self, curve: Curve, query: Query, name: str, there: int) -> float | None:
        """latency(wanted) / latency(there) on the nearest curve over ``name``, in one tier.

        Of the other near ones too: a dim that is badly served already hides the cliffs of the
        others, and the nearest curve may be fixed at such a dim.
        """
        spanning = self._along(curve, query, name, there)
        if not spanning:
            return None
        others, wanted = query.but(name), query.dims[name]
        near = nsmallest(
            NEAREST, spanning, key=lambda c: (dims_distance(c.fixed, others), c.identity)
        )
        for one in near:
            if not any(tier.holds(there) and tier.holds(wanted) for tier in one.tiers):
                return None
        way = near[0]
        start, end = at(way, there), at(way, wanted)
        return end.latency_us / start.latency_us if start and end else None

    def _blind_ratio(self, curve: Curve, query: Query, name: str, there: int) -> float | None:
        """By work alone, where no curve shows the way; a curve that shows a cliff is no such."""
        wanted = query.dims[name]
        if self._along(curve, query, name, there) or gcd(there, wanted) % BLIND_MULTIPLE:
            return None
        far = max(there, wanted) / min(there, wanted) > BLIND_RATIO
        return None if far else wanted / there


def _group(curve: Curve, axis: str, fixed: Iterable[str]) -> _Group:
    flags = tuple(sorted(curve.flags.items()))
    return curve.operator, axis, curve.dtype, flags, tuple(sorted(fixed))
