"""Which points deserve counters: the edges of a curve's cliffs, and their neighbours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gacprof.points import Point

if TYPE_CHECKING:
    from gacprof.cliffmap.schema import Curve


def edge_points(curve: Curve, neighbours: int = 1) -> list[Point]:
    """Both sides of every cliff with ``neighbours`` measured dims around, ascending."""
    dims = curve.points.d
    chosen: set[int] = set()
    for cliff in curve.cliffs:
        for edge in (cliff.before, cliff.after):
            at = dims.index(edge)
            chosen.update(dims[max(0, at - neighbours) : at + neighbours + 1])
    return [
        Point.of(curve.operator, curve.fixed | {curve.axis: d}, curve.dtype, curve.flags)
        for d in sorted(chosen)
    ]
