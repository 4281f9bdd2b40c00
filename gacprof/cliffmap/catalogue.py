"""What maps there are and what is in one: the values behind ``map list`` and ``map show``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gacprof.cliffmap.map import CliffMap
from gacprof.cliffmap.residues import label
from gacprof.cliffmap.schema import Curve
from gacprof.cliffmap.storage import shipped_maps


@dataclass(frozen=True)
class MapInfo:
    """A map in one line. ``age_days`` counts from its creation, None for an unreadable date."""

    name: str
    device: str
    provenance: str
    created: str
    age_days: int | None
    stack: dict[str, str | None]
    floor: float | None
    curves: int
    points: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


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


def list_maps(*paths: str | Path, today: datetime | None = None) -> list[MapInfo]:
    """The shipped maps, then the files named. Raises :class:`MapError` for an unreadable one."""
    return [describe(CliffMap.load(source), today) for source in [*shipped_maps(), *paths]]


def describe(cliff_map: CliffMap, today: datetime | None = None) -> MapInfo:
    file = cliff_map.file
    return MapInfo(
        name=file.name,
        device=file.device.name,
        provenance=file.provenance.kind,
        created=file.provenance.created,
        age_days=_age(file.provenance.created, today or datetime.now(UTC)),
        stack=dict(file.provenance.stack),
        floor=file.noise.floor,
        curves=len(file.curves),
        points=sum(len(curve.points.d) for curve in file.curves) + len(file.lone),
    )


def summarise(cliff_map: CliffMap) -> list[CurveSummary]:
    """Every curve of the map in one line each."""
    return [_summary(curve) for curve in cliff_map.curves]


def _summary(curve: Curve) -> CurveSummary:
    from gacprof.cliffmap.detect import penalty

    classes = curve.period.classes if curve.period else []
    modulus = curve.period.modulus if curve.period else 1
    return CurveSummary(
        curve=curve.identity,
        first=curve.coverage.first,
        last=curve.coverage.last,
        measured=curve.coverage.measured,
        failed=len(curve.coverage.failed),
        period=curve.period.modulus if curve.period else None,
        classes=[(label(curve.axis, modulus, c.remainders), c.ratio) for c in classes],
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
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (today - moment).days
