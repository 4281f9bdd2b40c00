"""Where a sweep's passes leave it open whether there is a cliff: there more visits are spent.

Two visits tell a jump of a few times their own noise, no less. A jump that is larger than the
A/A floor, yet not several times as large, is suspected: both of its sides are visited more
often, so that noise shrinks there and the map need not guess. What is far above the floor is
a cliff already, what is below it is none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from gacprof.measure.stats import median, quantile
from gacprof.points import Point
from gacprof.sweeping.refine import residue_classes

CLEAR = 4.0
"""Times the floor from which a jump needs no more visits: twice what the map raises the floor
by for many edges (gacprof.cliffmap.detect.cliff_floor)."""
FLOOR_QUANTILE = 0.95

Taken = tuple[int, bool, float]
"""One visit of a point: its pass, whether it was a duplicate, its median in microseconds."""


def suspected(
    curves: Iterable[Mapping[int, Point]], taken: Mapping[Point, Sequence[Taken]], passes: int
) -> set[Point]:
    """The points on either side of each suspected edge, judged by the first ``passes`` visits."""
    own = {p: _median(t, passes, duplicate=False) for p, t in taken.items()}
    floor = _floor(taken, own, passes)
    if not floor:
        return set()
    found: set[Point] = set()
    for curve in curves:
        latency = {d: t for d, p in curve.items() if (t := own.get(p)) is not None}
        for a, b in _neighbours(latency):
            small, large = sorted((latency[a], latency[b]))
            if floor < large / small - 1 < CLEAR * floor:
                found |= {curve[a], curve[b]}
    return found


def _neighbours(dims: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Neighbours on the axis, and neighbours of one residue class where these are others."""
    ordered = sorted(dims)
    yield from pairwise(ordered)
    if len(ordered) > 1 and ordered[-1] - ordered[0] > 2 * len(ordered):
        for members in residue_classes(ordered):
            yield from pairwise(members)


def _floor(
    taken: Mapping[Point, Sequence[Taken]], own: Mapping[Point, float | None], passes: int
) -> float:
    """What 95 % of points differ by from themselves in disguise; 0 where none was disguised."""
    differences = [
        abs(again / once - 1)
        for point, visits in taken.items()
        if (again := _median(visits, passes, duplicate=True)) and (once := own[point])
    ]
    return quantile(differences, FLOOR_QUANTILE) if differences else 0.0


def _median(visits: Sequence[Taken], passes: int, *, duplicate: bool) -> float | None:
    mine = [m for number, disguised, m in visits if number < passes and disguised == duplicate]
    return median(mine) if mine else None
