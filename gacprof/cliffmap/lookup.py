"""Latency of any shape: measured exactly, else within its tier, else a miss. Never a guess.

In this order:

1. the exact point;
2. between two measured neighbours of the same tier on the same curve (:mod:`within`);
3. the curve at the nearest other fixed dims, scaled, provided that each dim that differs
   stays within one tier on the way (:mod:`scaling`).

Nothing crosses a cliff, a change of mechanism, or a change of residue class.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from gacprof.cliffmap.miss import MapMiss
from gacprof.cliffmap.query import Lookup, Query, curve_key
from gacprof.cliffmap.scaling import Scaling
from gacprof.cliffmap.schema import Curve, LonePoint, MapFile
from gacprof.cliffmap.selection import complete_dims
from gacprof.cliffmap.within import between, measured
from gacprof.core.points import Flag

__all__ = ["Index", "Lookup"]

_Hit = tuple[tuple[int, int], Lookup]


class Index:
    """Look-ups over a map's curves; exact ones in constant time, whatever the map's size."""

    def __init__(self, file: MapFile) -> None:
        self._name = file.name
        self._measured = file.provenance.kind == "measured"
        self._curves: dict[tuple[Any, ...], list[Curve]] = defaultdict(list)
        for curve in file.curves:
            self._curves[curve_key(curve)].append(curve)
        self._lone: dict[tuple[Any, ...], list[LonePoint]] = defaultdict(list)
        for point in file.lone:
            key = (point.operator, point.dtype, tuple(sorted(point.dims.items())))
            self._lone[key].append(point)
        self._scaling = Scaling(file.curves)

    def find(
        self,
        operator: str,
        dims: Mapping[str, int],
        dtype: str,
        flags: Mapping[str, Flag] | None = None,
    ) -> Lookup:
        """The latency at these dims. Raises :class:`MapMiss` where the map cannot say."""
        query = Query(operator, complete_dims(operator, dims), dtype, flags or {})
        found = self._exact(query) or self._between(query) or self._scaling.carry(query)
        if found is None:
            shape = " ".join(f"{name}={size}" for name, size in sorted(query.dims.items()))
            raise MapMiss(
                f"the map '{self._name}' cannot tell the latency of {operator} {shape} {dtype}",
                operator=operator,
                dims=query.dims,
                dtype=dtype,
                flags=query.flags,
            )
        unbounded = self._measured and found.low_us is None
        return replace(found, unbounded=True) if unbounded else found

    def _exact(self, query: Query) -> Lookup | None:
        hits = [
            (distance, found)
            for axis, distance, curve in self._through(query)
            if (found := measured(curve, query.dims[axis])) is not None
        ]
        for point in self._lone.get(query.point_key, ()):
            distance = query.distance(point.flags)
            if distance is not None:
                values = point.median_us, point.low_us, point.high_us
                hits.append((distance, Lookup(*values, "exact", "a point of its own")))
        return _best(hits)

    def _between(self, query: Query) -> Lookup | None:
        return _best(
            [
                (distance, found)
                for axis, distance, curve in self._through(query)
                if (found := between(curve, query.dims[axis])) is not None
            ]
        )

    def _through(self, query: Query) -> Iterator[tuple[str, tuple[int, int], Curve]]:
        """The curves that run through the point, whether or not they hold it."""
        for axis in query.dims:
            for curve in self._curves.get(query.key(axis), ()):
                distance = query.distance(curve.flags)
                if distance is not None:
                    yield axis, distance, curve


def _best(hits: list[_Hit]) -> Lookup | None:
    return min(hits, key=lambda hit: hit[0])[1] if hits else None
