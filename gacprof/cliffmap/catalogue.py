"""A map in numbers, for lists and summaries."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from gacprof.cliffmap.map import CliffMap


def map_facts(cliff_map: CliffMap, today: datetime | None = None) -> dict[str, Any]:
    """Where a map is from, what it holds, how its dims were judged.

    ``age_days`` counts from its creation, None for an unreadable date.
    """
    file = cliff_map.file
    verdicts = {
        verdict: sum(len(getattr(curve, verdict)) for curve in file.curves)
        for verdict in ("safe", "misaligned", "undecided")
    }
    return {
        "name": file.name,
        "device": file.device.name,
        "arch": file.device.arch,
        "provenance": file.provenance.kind,
        "source": file.provenance.source,
        "citation": file.provenance.citation,
        "created": file.provenance.created,
        "age_days": _age(file.provenance.created, today or datetime.now(UTC)),
        "stack": dict(file.provenance.stack),
        "noise_floor": file.noise.floor,
        "too_noisy": cliff_map.too_noisy,
        "tolerances": sorted({curve.tolerance for curve in file.curves}),
        "curves": len(file.curves),
        "points": sum(len(curve.points.d) for curve in file.curves) + len(file.lone),
        "cliffs": sum(len(curve.cliffs) for curve in file.curves),
        **verdicts,
    }


def _age(created: str, today: datetime) -> int | None:
    try:
        moment = datetime.fromisoformat(created.replace("Z", "+00:00"))
    except ValueError:
        return None
    return (today - (moment if moment.tzinfo else moment.replace(tzinfo=UTC))).days
