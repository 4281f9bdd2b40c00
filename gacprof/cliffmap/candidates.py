"""Safe dims near a wish, on both sides: of one curve, or of several uses of one dim together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from numbers import Real
from typing import Any, ClassVar, TypedDict, TypeVar

from gacprof.cliffmap import detect
from gacprof.cliffmap.schema import Curve
from gacprof.cliffmap.selection import check_whole, span_of
from gacprof.core.errors import MapError
from gacprof.core.files import Record
from gacprof.core.points import Flag
from gacprof.stats.findings import Verdict
from gacprof.stats.judge import judge


class JudgedDim(Record):
    """What candidates of one map and of several maps have in common."""

    derived: ClassVar = ("safe",)

    d: int
    verdict: Verdict

    @property
    def safe(self) -> bool:
        return self.verdict == "safe"


@dataclass(frozen=True)
class Candidate(JudgedDim):
    """A dim and what it costs. ``latency_us`` is summed over the uses where there are several;
    ``penalty`` is how much longer it takes than the best larger dim, between ``penalty_low`` and
    ``penalty_high`` (None where no larger dim settles it), judged by the ``tolerance``; ``curve``
    says what that is known from.

    Where the source knows mechanisms and no times, ``tier`` counts them, 1 for the best, and
    latency and penalties are None; :meth:`as_dict` leaves them out."""

    d: int
    latency_us: float | None
    penalty: float | None
    penalty_low: float | None
    penalty_high: float | None
    verdict: Verdict
    on_frontier: bool
    tolerance: float | None
    curve: str = ""
    tier: int | None = None

    def as_dict(self) -> dict[str, Any]:
        found = super().as_dict()
        if self.tier is None:
            del found["tier"]
            return found
        return {
            name: found[name] for name in ("d", "tier", "verdict", "on_frontier", "curve", "safe")
        }


@dataclass(frozen=True)
class Use:
    """One operator that a dim takes part in: its shape, and the axis whose size the dim is.

    ``dims`` are the operator's dims at the layer's real shape; the size given there for
    ``axis``, if any, is ignored. ``weight`` is how often the use runs (tokens' share, calls).
    ``shards`` ranks share the dim: each runs that fraction of it.
    """

    operator: str
    dims: Mapping[str, int]
    axis: str
    dtype: str
    flags: Mapping[str, Flag] = field(default_factory=dict)
    weight: float = 1.0
    shards: int = 1

    def __post_init__(self) -> None:
        check_whole("shards", self.shards, 1)
        if not isinstance(self.weight, Real) or not 0 < self.weight < inf:
            raise MapError(f"a use's weight must be a number above 0, not {self.weight!r}")

    @property
    def fixed(self) -> dict[str, int]:
        """The operator's other dims."""
        return {name: size for name, size in self.dims.items() if name != self.axis}


def of_curve(curve: Curve, shards: int = 1) -> list[Candidate]:
    """Every measured dim of the curve with its verdict; ascending. Of a dim that ``shards`` ranks
    share, each holds one of the curve's."""
    p, frontier = curve.points, set(curve.frontier)
    about = curve.tolerance, curve.identity
    penalties, verdicts = detect.penalty(p.median_us), curve.verdicts
    columns = zip(p.d, p.median_us, penalties, p.penalty_low, p.penalty_high, verdicts, strict=True)
    return [
        Candidate(d * shards, latency, penalty, low, high, verdict, d in frontier, *about)
        for d, latency, penalty, low, high, verdict in columns
    ]


def of_sums(
    d: Sequence[int],
    latency: Sequence[float],
    error: Sequence[float] | None,
    tolerance: float,
    settled: Sequence[bool],
    curve: str = "",
) -> list[Candidate]:
    """Dims judged on a latency that was summed over several uses. Ascending ``d``; ``error`` are
    relative standard errors of the sums; ``settled`` are the comparable ones."""
    judged = judge(latency, error, tolerance, settled)
    frontier = detect.frontier_of(d, latency, settled, judged.verdict, detect.cliff_floor(error))
    bounds = (column.tolist() for column in (judged.penalty, judged.low, judged.high))
    columns = zip(d, latency, *bounds, judged.verdict, strict=True)
    return [
        Candidate(
            size, t, penalty, low, high if isfinite(high) else None, verdict,
            size in frontier, tolerance, curve,
        )
        for size, t, penalty, low, high, verdict in columns
    ]  # fmt: skip


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
