"""What is in a map, for ``gacprof map list`` and ``map show``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from gacprof.cliffmap.detect import label, penalty
from gacprof.cliffmap.map import CliffMap
from gacprof.cliffmap.schema import Curve


@dataclass(frozen=True)
class CurveSummary:
    """A curve in one line. ``classes`` are the residue classes in words, fastest first, with
    their latency relative to the fastest."""

    curve: str
    first: int
    last: int
    measured: int
    failed: int
    period: int | None
    classes: list[tuple[str, float]]
    cliffs: int
    largest_jump: float | None
    frontier: list[int]
    safe: int
    misaligned: int
    undecided: int
    worst_penalty: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def describe(cliff_map: CliffMap, today: datetime | None = None) -> dict[str, Any]:
    """A map in one line. ``age_days`` counts from its creation, None for an unreadable date."""
    file = cliff_map.file
    return {
        "name": file.name,
        "device": file.device.name,
        "provenance": file.provenance.kind,
        "created": file.provenance.created,
        "age_days": _age(file.provenance.created, today or datetime.now(UTC)),
        "stack": dict(file.provenance.stack),
        "floor": file.noise.floor,
        "curves": len(file.curves),
        "points": sum(len(curve.points.d) for curve in file.curves) + len(file.lone),
    }


def summarise(cliff_map: CliffMap) -> list[CurveSummary]:
    """Every curve of the map in one line each."""
    return [_summary(curve) for curve in cliff_map.curves]


def _summary(curve: Curve) -> CurveSummary:
    classes = curve.period.classes if curve.period else []
    period = curve.period.modulus if curve.period else None
    return CurveSummary(
        curve=curve.identity,
        first=curve.coverage.first,
        last=curve.coverage.last,
        measured=curve.coverage.measured,
        failed=len(curve.coverage.failed),
        period=period,
        classes=[(label(curve.axis, period or 1, c.remainders), c.ratio) for c in classes],
        cliffs=len(curve.cliffs),
        largest_jump=max((c.jump for c in curve.cliffs), key=abs, default=None),
        frontier=curve.frontier,
        safe=len(curve.safe),
        misaligned=len(curve.misaligned),
        undecided=len(curve.undecided),
        worst_penalty=round(max(penalty(curve.points.median_us)), 4),
    )


def _age(created: str, today: datetime) -> int | None:
    try:
        moment = datetime.fromisoformat(created.replace("Z", "+00:00"))
    except ValueError:
        return None
    return (today - (moment if moment.tzinfo else moment.replace(tzinfo=UTC))).days
