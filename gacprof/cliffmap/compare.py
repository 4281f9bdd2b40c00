"""Two maps side by side: what became faster, which cliffs are gone, new, or moved.

Two devices, or one device before and after an upgrade. A cliff of one map is looked for at
the same two dims of the other, so that maps with different periods can be compared; what the
other map did not measure there is said to be unknown, not gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import log1p
from statistics import median
from typing import Any, Literal

from gacprof.cliffmap.map import CliffMap
from gacprof.cliffmap.schema import Cliff, Curve

MOVED_WITHIN = 0.1
"""A cliff in the same direction within this fraction of the dim is the old one, moved."""

Verdict = Literal["gone", "new", "moved", "larger", "smaller", "unknown"]


@dataclass(frozen=True)
class CliffChange:
    """What became of one cliff. Jumps are fractions, with bounds from the medians' intervals.

    ``significant`` is whether the bounds of the two jumps, widened by both noise floors, do
    not overlap. For ``moved``, ``before`` and ``after`` are the old place, ``to`` the new.
    """

    verdict: Verdict
    before: int
    after: int
    jump_a: float | None
    jump_b: float | None
    significant: bool
    to: tuple[int, int] | None = None


@dataclass(frozen=True)
class CurveDiff:
    """One curve in both maps. ``ratio`` is the median of latency(B) / latency(A) over the dims
    that both measured, None without any; the lists of dims are about those only."""

    curve: str
    ratio: float | None
    common: int
    period_a: int | None
    period_b: int | None
    frontier_lost: list[int]
    frontier_gained: list[int]
    safe_lost: list[int]
    safe_gained: list[int]
    cliffs: list[CliffChange]


@dataclass(frozen=True)
class MapDiff:
    """``only_a`` and ``only_b`` name the curves that the other map lacks."""

    a: str
    b: str
    floor: float
    curves: list[CurveDiff]
    only_a: list[str]
    only_b: list[str]

    @property
    def differs(self) -> bool:
        """Whether any cliff is significantly gone, new, moved or of another size."""
        return any(c.significant for curve in self.curves for c in curve.cliffs)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "differs": self.differs}


def diff(a: CliffMap, b: CliffMap) -> MapDiff:
    """From ``a`` to ``b``. Curves are matched by operator, axis, dtype, flags and fixed dims."""
    old = {curve.identity: curve for curve in a.curves}
    new = {curve.identity: curve for curve in b.curves}
    return MapDiff(
        a=a.name,
        b=b.name,
        floor=max((c.floor for c in [*a.curves, *b.curves]), default=0.0),
        curves=[_curve(old[name], new[name]) for name in old if name in new],
        only_a=[name for name in old if name not in new],
        only_b=[name for name in new if name not in old],
    )


def _curve(a: Curve, b: Curve) -> CurveDiff:
    common = set(a.points.d) & set(b.points.d)
    in_a, in_b = _latencies(a), _latencies(b)
    ratios = [in_b[d][1] / in_a[d][1] for d in common]

    def lost(x: list[int], y: list[int]) -> list[int]:
        return sorted((set(x) - set(y)) & common)

    return CurveDiff(
        curve=a.identity,
        ratio=round(median(ratios), 4) if ratios else None,
        common=len(common),
        period_a=a.period.modulus if a.period else None,
        period_b=b.period.modulus if b.period else None,
        frontier_lost=lost(a.frontier, b.frontier),
        frontier_gained=lost(b.frontier, a.frontier),
        safe_lost=lost(a.safe, b.safe),
        safe_gained=lost(b.safe, a.safe),
        cliffs=_changes(a, b),
    )


_Bounds = tuple[float, float, float]  # low, middle, high


def _latencies(curve: Curve) -> dict[int, _Bounds]:
    p = curve.points
    return {
        d: (middle if low is None else low, middle, middle if high is None else high)
        for d, middle, low, high in zip(p.d, p.median_us, p.low_us, p.high_us, strict=True)
    }


def _changes(a: Curve, b: Curve) -> list[CliffChange]:
    """Cliffs of either map that are not alike in the other; those that moved are paired up."""
    floor = a.floor + b.floor
    in_a, in_b = _latencies(a), _latencies(b)
    kept = [(c, _judge(c, in_b, floor)) for c in a.cliffs]
    gone = [(c, change) for c, change in kept if change.verdict == "gone"]
    other = [change for _, change in kept if change.verdict != "gone" and _matters(change)]
    new = [
        (c, CliffChange("new", c.before, c.after, change.jump_b, c.jump, change.significant))
        for c in b.cliffs
        if (change := _judge(c, in_a, floor)).verdict == "gone"
    ]
    for cliff, change in list(gone):
        match = next((pair for pair in new if _same_but_moved(cliff, pair[0])), None)
        if match is not None:
            gone.remove((cliff, change))
            new.remove(match)
            other.append(
                CliffChange(
                    "moved", cliff.before, cliff.after, cliff.jump, match[0].jump,
                    change.significant and match[1].significant,
                    (match[0].before, match[0].after),
                )
            )  # fmt: skip
    found = [change for _, change in gone] + [change for _, change in new] + other
    return sorted(found, key=lambda change: (change.before, change.after))


def _matters(change: CliffChange) -> bool:
    return change.verdict == "unknown" or change.significant


def _judge(cliff: Cliff, there: Mapping[int, _Bounds], floor: float) -> CliffChange:
    """The cliff's own two dims in the other map. ``gone`` if there is no such jump there."""
    if cliff.before not in there or cliff.after not in there:
        return CliffChange("unknown", cliff.before, cliff.after, cliff.jump, None, False)
    (low_0, middle_0, high_0), (low_1, middle_1, high_1) = there[cliff.before], there[cliff.after]
    jump = middle_1 / middle_0 - 1
    low, high = low_1 / high_0 - 1, high_1 / low_0 - 1
    significant = low - floor > cliff.high or high + floor < cliff.low
    verdict: Verdict = "larger" if abs(jump) > abs(cliff.jump) else "smaller"
    if abs(log1p(jump)) <= log1p(floor / 2) or jump * cliff.jump < 0:
        verdict = "gone"
    return CliffChange(verdict, cliff.before, cliff.after, cliff.jump, round(jump, 4), significant)


def _same_but_moved(old: Cliff, new: Cliff) -> bool:
    near = abs(new.after - old.after) <= MOVED_WITHIN * old.after
    return near and old.jump * new.jump > 0
