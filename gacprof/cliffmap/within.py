"""Latency at a dim of one curve: measured, or between its neighbours in the same tier."""

from __future__ import annotations

from bisect import bisect_left

from gacprof.cliffmap.query import Lookup
from gacprof.cliffmap.residues import finest_step
from gacprof.cliffmap.schema import Curve

WIDEST_GAP = 1.25
"""Between neighbours further apart than this ratio nothing is filled in: a coarse sweep does
not show what lies between its dims."""

WIDEST_HOLE = 2
"""On a curve without a period only single missing dims are filled in, this many of the sweep's
finest steps from neighbour to neighbour: across a wider hole nothing vouches that the residues
which were not visited fare as those that were. On CPU sweeps that was up to 15 % wrong."""

WIDEST_STEP = 1.1
"""Between neighbours whose latencies differ by more than this ratio nothing is filled in. A
gap of dims hides a cliff as large as the work grows over it (72 to 88: 22 %), and halfway
across one the answer would be off by half of it. At this ratio it is off by 5 % at most."""


def measured(curve: Curve, d: int) -> Lookup | None:
    """The point itself, if it was measured."""
    p = curve.points
    place = bisect_left(p.d, d)
    if place == len(p.d) or p.d[place] != d:
        return None
    found = p.median_us[place], p.low_us[place], p.high_us[place]
    return Lookup(*found, "exact", curve.identity)


def between(curve: Curve, d: int) -> Lookup | None:
    """Linear between the two measured neighbours of d's tier; None where d is in no one tier."""
    tiers = [tier for tier in curve.tiers if tier.holds(d)]
    dims, latency = curve.points.d, curve.points.median_us
    # A sweep in steps says nothing of residues that it never visited.
    if len(tiers) != 1 or (d - dims[0]) % finest_step(dims):
        return None
    members = [i for i, size in enumerate(dims) if tiers[0].holds(size)]
    place = bisect_left(members, d, key=lambda i: dims[i])
    before, after = members[place - 1], members[place]
    a, b = dims[before], dims[after]
    hole = (b - a) // finest_step(dims)
    if b / a > WIDEST_GAP or (curve.period is None and hole > WIDEST_HOLE):
        return None
    lower, upper = sorted((latency[before], latency[after]))
    if upper > WIDEST_STEP * lower:
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


def at(curve: Curve, d: int) -> Lookup | None:
    return measured(curve, d) or between(curve, d)
