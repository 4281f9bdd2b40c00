"""In which rounds a suite's visits are taken: one for exhaustive suites, several for adaptive.

What a round holds follows from the suite and from what earlier rounds measured in the first
pass, from nothing else. A resumed sweep plays the same rounds again, skipping visits whose
samples it has.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence

from gacprof.points import Point
from gacprof.sweeping.order import Visit, visits
from gacprof.sweeping.refine import Rounds, Seen, refine
from gacprof.sweeping.suite import Suite, Timing
from gacprof.sweeping.suspects import Taken, suspected

CLIFF_IN_HALF_WIDTHS = 3
"""The stopping rule's half width is a third of the smallest cliff of interest."""

Curve = dict[int, Point]


def rounds(
    suite: Suite,
    device_kind: str,
    seen: Mapping[Point, Seen],
    taken: Mapping[Point, Sequence[Taken]],
) -> Iterator[list[Visit]]:
    """Batches of visits, each shuffled. Before the next is asked for, ``seen`` must hold the
    first pass of all points visited so far, and ``taken`` all their visits.

    The last batches are spent on suspected edges, as long as they are. Raises :class:`SuiteError`.
    """
    yield from _passes(suite, device_kind, seen)
    timing = suite.timing
    if not timing.edge_visits:
        return
    sweeps = [s for s in suite.sweep if s.device in (None, device_kind)]
    curves = [curve for sweep in sweeps for curve in sweep.curves(device_kind)]
    for extra in range(timing.edge_visits):
        number = timing.passes + extra
        found = suspected(curves, taken, timing.passes, extra)
        open_points = sorted(found, key=lambda point: point.id)
        random.Random(f"{timing.seed}:edges:{number}").shuffle(open_points)
        yield [Visit(point, number, False, thorough=True) for point in open_points]


def _passes(suite: Suite, device_kind: str, seen: Mapping[Point, Seen]) -> Iterator[list[Visit]]:
    points = suite.points(device_kind)
    adaptive = [
        curve
        for sweep in suite.sweep
        if sweep.strategy == "adaptive" and sweep.device in (None, device_kind)
        for curve in sweep.curves(device_kind)
    ]
    timing = suite.timing
    if not adaptive:
        yield _all_visits(points, timing)
        return
    chosen = set(_whole(suite, device_kind))
    first_pass: set[Point] = set()
    for number, batch in enumerate(_refinements(adaptive, chosen, timing, seen)):
        fresh = sorted(batch - first_pass, key=lambda point: point.id)
        first_pass |= batch
        random.Random(f"{timing.seed}:{number}").shuffle(fresh)
        yield [Visit(point, 0, False) for point in fresh]
    rest = _all_visits({p: points[p] for p in first_pass}, timing)
    yield [visit for visit in rest if visit.number or visit.duplicate]


def _all_visits(points: Mapping[Point, object], timing: Timing) -> list[Visit]:
    return visits(points, timing.passes, timing.duplicates, timing.least_duplicates, timing.seed)


def _whole(suite: Suite, device_kind: str) -> Iterator[Point]:
    for sweep in suite.sweep:
        if sweep.strategy == "exhaustive" and sweep.device in (None, device_kind):
            yield from sweep.points(device_kind)


def _refinements(
    curves: list[Curve], whole: set[Point], timing: Timing, seen: Mapping[Point, Seen]
) -> Iterator[set[Point]]:
    """The points that the next round of every curve asks for; the first holds ``whole`` too."""
    floor = CLIFF_IN_HALF_WIDTHS * timing.half_width
    running: list[tuple[Curve, Rounds, set[int]]] = []
    batch = set(whole)
    for curve in curves:
        going = refine(sorted(curve), floor, timing.seed)
        wanted = set(next(going))
        running.append((curve, going, wanted))
        batch |= {curve[d] for d in wanted}
    while batch:
        yield batch
        batch = set()
        still: list[tuple[Curve, Rounds, set[int]]] = []
        for curve, going, asked in running:
            try:
                more = going.send({d: seen[curve[d]] for d in asked})
            except StopIteration:
                continue
            batch |= {curve[d] for d in more}
            still.append((curve, going, asked | set(more)))
        running = still
