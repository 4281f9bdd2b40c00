"""Safe dims on both sides of a requested one: of a curve, or of several uses of one dim."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import TypedDict, TypeVar

from gacprof.cliffmap import detect
from gacprof.cliffmap.estimate import Estimate
from gacprof.cliffmap.schema import Curve
from gacprof.cliffmap.selection import check_whole, span_of
from gacprof.cliffmap.source import Candidate, JudgedDim, Side
from gacprof.stats.findings import Verdict
from gacprof.stats.judge import Judged, comparable_sums, judge, known_errors


def of_curve(curve: Curve, shards: int = 1) -> list[Candidate]:
    """Every measured dim of the curve with its verdict; ascending. Of a dim that ``shards`` ranks
    share, each holds one of the curve's."""
    p, frontier = curve.points, set(curve.frontier)
    about = curve.tolerance, curve.identity
    penalties, verdicts = detect.penalty(p.latency_us), curve.verdicts
    columns = zip(
        p.d, p.latency_us, penalties, p.penalty_low, p.penalty_high, verdicts, strict=True
    )
    return [
        Candidate(d * shards, latency, penalty, low, high, verdict, d in frontier, *about)
        for d, latency, penalty, low, high, verdict in columns
    ]


@dataclass(frozen=True)
class OnCurve:
    """A curve that a side of one of a dim's operators runs along."""

    curve: Curve
    side: Side

    @property
    def measured(self) -> set[int]:
        """The sizes of the dim that the curve has measured."""
        found = (self.side.size_for(length) for length in self.curve.points.d)
        return {size for size in found if size is not None}

    def comparable_among(self, sizes: Sequence[int]) -> list[bool]:
        return self.curve.comparable_among([self.side.at(size) or 0 for size in sizes])


@dataclass(frozen=True)
class Summed:
    """Ascending sizes of one dim, judged on the time of all its operators together: their verdicts,
    and what they rest on. Those that are not ``comparable`` are never safe."""

    sizes: list[int]
    latency_us: list[float]
    error: list[float] | None
    degrees: list[float] | None
    comparable: list[bool]
    judged: Judged

    @property
    def rows(self) -> Iterator[tuple[int, float, float, float, float | None, Verdict]]:
        """Size, latency, penalty, its bounds (None: nothing comparable is larger) and verdict."""
        penalty, low, high = (
            column.tolist() for column in (self.judged.penalty, self.judged.low, self.judged.high)
        )
        bounds = [p if isfinite(p) else None for p in high]
        return zip(
            self.sizes, self.latency_us, penalty, low, bounds, self.judged.verdict, strict=True
        )

    @property
    def frontier(self) -> list[int]:
        floor = detect.cliff_floor(self.error, self.degrees)
        verdicts = self.judged.verdict
        return detect.frontier_of(self.sizes, self.latency_us, self.comparable, verdicts, floor)


def judge_sums(
    estimates: Mapping[int, Estimate],
    places: Sequence[OnCurve],
    tolerance: float,
    most: int | None = None,
) -> Summed:
    """Judge sizes, ascending, by the estimates that are known of them, and by their ``places``
    on curves: none is comparable on no curve, since nothing larger was measured there, but one
    that is ``most`` at most. One product's verdicts are those of its curve, whose judge takes sizes
    of unknown error for not measured, too."""
    known = {size: e for size, e in estimates.items() if e.latency_us is not None}
    sizes, latency = list(known), [e.latency_us or 0.0 for e in known.values()]
    error = known_errors([e.error for e in known.values()])
    degrees = None if error is None else [e.degrees for e in known.values()]
    sure = [size for size, e in known.items() if error is None or isfinite(e.error or 0.0)]
    each = [(place.comparable_among(sure), place.curve.period is not None) for place in places]
    shards = max((place.side.shards for place in places), default=1)
    held = dict(zip(sure, comparable_sums(sure, each, shards), strict=True)) if each else {}
    comparable = [held.get(size, False) or size == most for size in sizes]
    judged = judge(latency, error, tolerance, comparable, degrees)
    return Summed(sizes, latency, error, degrees, comparable, judged)


J = TypeVar("J", bound=JudgedDim)


class Limits(TypedDict, total=False):
    """The options of :func:`choose`."""

    below: int | None
    above: int | None
    window: int | tuple[int, int] | None
    count: int | None
    safe_only: bool


def span(near: int, limits: Limits, reach: int) -> tuple[int, int]:
    """The first and last dim that the limits leave, ``reach`` to either side where they name no
    window."""
    window = limits.get("window")
    first, last = span_of(reach if window is None else window, near)
    return max(1, first), last


def choose(
    judged: Iterable[J],
    near: int,
    *,
    below: int | None = None,
    above: int | None = None,
    window: int | tuple[int, int] | None = None,
    count: int | None = None,
    safe_only: bool = True,
) -> list[J]:
    """Those near a dim, ascending. ``near`` itself is among them if it is one.

    ``below`` and ``above`` cap how many are taken on each side (None: all); ``window`` is a
    half-width, or the first and last dim allowed; ``count`` keeps that many of the nearest.
    Raises :class:`MapError` for limits that are none.
    """
    check_whole("near", near, 1)
    for name, limit in (("below", below), ("above", above), ("count", count)):
        if limit is not None:
            check_whole(name, limit, 0)
    first, last = (1, inf) if window is None else span_of(window, near)
    kept = [c for c in judged if (c.safe or not safe_only) and first <= c.d <= last]
    lower = sorted((c for c in kept if c.d < near), key=lambda c: -c.d)
    upper = sorted((c for c in kept if c.d > near), key=lambda c: c.d)
    kept = [*lower[:below], *(c for c in kept if c.d == near), *upper[:above]]
    if count is not None:
        kept = sorted(kept, key=lambda c: (abs(c.d - near), -c.d))[:count]
    return sorted(kept, key=lambda c: c.d)
