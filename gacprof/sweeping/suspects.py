"""Where a sweep's passes leave it open whether there is a cliff: there more visits are spent.

Two visits tell a jump of a few times their own noise, no less. A jump of about the A/A floor
or a few times as much is suspected: both of its sides are visited more often and longer, so
that noise shrinks there and the map need not guess. What is far above the floor is a cliff
already, unless no two visits of a side agree; what is well below it is none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from gacprof.measure.stats import quantile, relative_difference
from gacprof.points import Point
from gacprof.sweeping.refine import residue_classes

DOUBTFUL = 0.7
"""Times the floor up to which a jump is none: a floor of a dozen pairs may be too high by half."""
CLEAR = 4.0
"""Times the floor from which a jump needs no more visits: twice what the map raises the floor
by for many edges (gacprof.cliffmap.detect.cliff_floor)."""
FLOOR_QUANTILE = 0.95

Taken = tuple[int, bool, float]
"""One visit of a point: its pass, whether it was a duplicate, its median in microseconds."""


def suspected(
    curves: Iterable[Mapping[int, Point]],
    taken: Mapping[Point, Sequence[Taken]],
    passes: int,
    extra: int = 0,
) -> set[Point]:
    """The points on either side of each suspected edge.

    Judged as the map will: by each point's least disturbed visit, of the first ``passes`` and
    ``extra`` ones. The floor is that of the passes, in which points were visited in disguise.
    """
    floor = _floor(taken, passes)
    if not floor:
        return set()
    own = {p: _least(t, passes + extra, duplicate=False) for p, t in taken.items()}
    unsettled = {p for p, t in taken.items() if _gap(t, passes + extra) > floor}
    found: set[Point] = set()
    for curve in curves:
        latency = {d: t for d, p in curve.items() if (t := own.get(p)) is not None}
        for a, b in _neighbours(latency):
            jump = relative_difference(latency[a], latency[b])
            sides = {curve[a], curve[b]}
            if DOUBTFUL * floor < jump and (jump < CLEAR * floor or sides & unsettled):
                found |= sides
    return found


def _neighbours(dims: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Neighbours on the axis, and neighbours of one residue class where these are others."""
    ordered = sorted(dims)
    yield from pairwise(ordered)
    if len(ordered) > 1 and ordered[-1] - ordered[0] > 2 * len(ordered):
        for members in residue_classes(ordered):
            yield from pairwise(members)


def _floor(taken: Mapping[Point, Sequence[Taken]], passes: int) -> float:
    """What 95 % of points differ by from themselves in disguise; 0 where none was disguised."""
    differences = [
        relative_difference(again, once)
        for visits in taken.values()
        if (again := _least(visits, passes, duplicate=True))
        and (once := _least(visits, passes, duplicate=False))
    ]
    return quantile(differences, FLOOR_QUANTILE) if differences else 0.0


def _least(visits: Sequence[Taken], until: int, *, duplicate: bool) -> float | None:
    mine = [m for number, disguised, m in visits if number < until and disguised == duplicate]
    return min(mine, default=None)


def _gap(visits: Sequence[Taken], until: int) -> float:
    """By how much the second least disturbed visit exceeds the least; 0 of a single one."""
    mine = sorted(m for number, disguised, m in visits if number < until and not disguised)
    return mine[1] / mine[0] - 1 if len(mine) > 1 else 0.0
