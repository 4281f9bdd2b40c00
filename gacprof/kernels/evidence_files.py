"""Evidence kept in a sweep's folder with its samples: counters and CPU implementations.

Both are JSON, read without the tools that made them. A folder without them is a folder whose
evidence was not collected: reading gives nothing and no error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gacprof.core.errors import MeasurementError
from gacprof.core.files import write_json
from gacprof.core.points import Point
from gacprof.kernels.names import parse
from gacprof.kernels.ncu import KernelCounters
from gacprof.kernels.onednn import CpuImplementation, LibraryCall

COUNTERS, COUNTERS_SCHEMA = "ncu.json", "gacprof.counters/1"
IMPLEMENTATIONS, IMPLEMENTATIONS_SCHEMA = "implementations.json", "gacprof.implementations/1"

Counters = Mapping[Point, Sequence[KernelCounters]]


def write_counters(folder: Path, counters: Counters) -> Path:
    """Replace the folder's counters. Returns the file."""
    rows = [
        {"point": _plain(point), "launches": [launch.as_dict() for launch in launches]}
        for point, launches in counters.items()
    ]
    return _write(folder / COUNTERS, COUNTERS_SCHEMA, rows)


def read_counters(folder: Path) -> dict[Point, list[KernelCounters]]:
    """Launches by point; empty where none were collected. Raises :class:`MeasurementError`."""

    def read(row: Mapping[str, Any]) -> tuple[Point, list[KernelCounters]]:
        return _point(row["point"]), [_launch(launch) for launch in row["launches"]]

    return dict(_rows(folder / COUNTERS, COUNTERS_SCHEMA, read))


def write_implementations(folder: Path, found: Sequence[CpuImplementation]) -> Path:
    """Replace the folder's CPU implementations. Returns the file."""
    rows = [one.as_dict() | {"point": _plain(one.point)} for one in found]
    return _write(folder / IMPLEMENTATIONS, IMPLEMENTATIONS_SCHEMA, rows)


def read_implementations(folder: Path) -> dict[Point, CpuImplementation]:
    """By point; empty where nobody asked. Raises :class:`MeasurementError` where garbled."""

    def read(row: Mapping[str, Any]) -> tuple[Point, CpuImplementation]:
        point = _point(row["point"])
        made = tuple(LibraryCall(**call) for call in row["calls"])
        return point, CpuImplementation(point, made, str(row["reason"]))

    return dict(_rows(folder / IMPLEMENTATIONS, IMPLEMENTATIONS_SCHEMA, read))


def _launch(data: Mapping[str, Any]) -> KernelCounters:
    opcodes = data["opcodes"]
    return KernelCounters(
        kernel=parse(data["kernel"]["name"]),
        arch=data["arch"],
        device=data["device"],
        ranges=tuple(data["ranges"]),
        values=dict(data["values"]),
        absent=dict(data["absent"]),
        opcodes=None if opcodes is None else dict(opcodes),
    )


def _plain(point: Point) -> dict[str, Any]:
    return {
        "operator": point.operator, "dims": point.dim, "dtype": point.dtype, "flags": point.flag,
    }  # fmt: skip


def _point(data: Mapping[str, Any]) -> Point:
    return Point.of(data["operator"], data["dims"], data["dtype"], data["flags"])


def _write(path: Path, schema: str, rows: list[dict[str, Any]]) -> Path:
    try:
        write_json(path, {"schema": schema, "points": rows})
    except OSError as error:
        raise MeasurementError(f"cannot write {path}: {error.strerror or error}") from None
    return path


def _rows(path: Path, schema: str, read: Any) -> list[Any]:
    if not path.exists():
        return []
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["schema"] != schema:
            raise MeasurementError(f"{path} is of schema {data['schema']!r}, not {schema}")
        return [read(row) for row in data["points"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise MeasurementError(
            f"{path} is not readable as evidence ({type(error).__name__}: {error}): "
            "collect it again, or delete it"
        ) from None
