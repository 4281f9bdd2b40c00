"""Which points deserve counters: the edges of a curve's cliffs, and their neighbours."""

from __future__ import annotations

from gacprof.cliffmap.schema import Curve
from gacprof.core.points import Point


def points_of(curve: Curve) -> list[Point]:
    """What was measured, as points, ascending in the dim."""
    return [
        Point.of(curve.operator, curve.fixed | {curve.axis: d}, curve.dtype, curve.flags)
        for d in curve.points.d
    ]


def edge_points(curve: Curve, neighbours: int = 1) -> list[Point]:
    """Both sides of every cliff with ``neighbours`` measured dims around, ascending."""
    dims, points = curve.points.d, points_of(curve)
    chosen: set[int] = set()
    for cliff in curve.cliffs:
        for edge in (cliff.before, cliff.after):
            at = dims.index(edge)
            chosen.update(range(max(0, at - neighbours), min(len(dims), at + neighbours + 1)))
    return [points[i] for i in sorted(chosen)]
