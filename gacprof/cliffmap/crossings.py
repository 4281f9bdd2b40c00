"""Where two curves of a map cross they tell the latency of one point, and must agree."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict

from gacprof.cliffmap.schema import Curve, MapFile

DISAGREE = 0.1
"""Published curves come from separate runs (1.3 % apart at most). A tenth is more, and more than
three noise floors is noise."""

LEVELS_DISAGREE = 0.5
"""Of a sweep's own curves: each has its level from its own blocks, which may be few."""
SPREAD_KNOWN = ("cpu-monotonic", "cuda-graph", "cuda-events", "recorded")
"""Timers of our own sweeps, in whose maps a point without bounds was measured too seldom."""


def disagreement(file: MapFile) -> str | None:
    """The first point of which two curves say different things, in words; None if all agree."""
    least = LEVELS_DISAGREE if file.provenance.kind == "measured" else DISAGREE
    allowed = max(least, 3 * (file.noise.floor or 0.0))
    crossing = _by_open_axis(file.curves)
    for curve in file.curves:
        for other_axis in curve.fixed:
            for other in crossing.get(_key(curve, other_axis, curve.axis), ()):
                here = _at(curve, other.fixed[curve.axis])
                there = _at(other, curve.fixed[other_axis])
                if here and there and abs(here - there) / min(here, there) > allowed:
                    point = {**curve.fixed, curve.axis: other.fixed[curve.axis]}
                    dims = " ".join(f"{name}={value}" for name, value in sorted(point.items()))
                    return (
                        f"two curves disagree at {curve.operator} {dims} {curve.dtype}: "
                        f"{here} µs over {curve.axis}, {there} µs over {other_axis}"
                    )
    return None


def _at(curve: Curve, d: int) -> float | None:
    """The latency at a measured dim, in µs; None where it was measured too seldom to be bounded
    though others were."""
    p = curve.points
    place = bisect_left(p.d, d)
    if place == len(p.d) or p.d[place] != d:
        return None
    seldom = p.low_us[place] is None and curve.timer in SPREAD_KNOWN
    return None if seldom else p.median_us[place]


def _by_open_axis(curves: list[Curve]) -> dict[tuple, list[Curve]]:
    """Curves by the axis they sweep and by one more axis left open, all else equal."""
    found: dict[tuple, list[Curve]] = defaultdict(list)
    for curve in curves:
        for name in curve.fixed:
            found[_key(curve, curve.axis, name)].append(curve)
    return found


def _key(curve: Curve, swept: str, opened: str) -> tuple:
    rest = tuple(item for item in sorted(curve.fixed.items()) if item[0] not in (swept, opened))
    flags = tuple(sorted(curve.flags.items()))
    return curve.operator, curve.dtype, flags, swept, opened, rest
