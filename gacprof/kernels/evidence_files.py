"""Evidence kept in a sweep's folder with its samples: counters and CPU implementations.

Both are JSON, read without the tools that made them. A folder without them is a folder whose
evidence was not collected: reading gives nothing and no error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError

from gacprof.core.errors import MeasurementError
from gacprof.core.files import write_json
from gacprof.core.points import Flag, Point
from gacprof.kernels.names import parse
from gacprof.kernels.ncu import METRICS, KernelCounters
from gacprof.kernels.onednn import CpuImplementation, LibraryCall

COUNTERS, IMPLEMENTATIONS = "ncu.json", "implementations.json"
Counters = Mapping[Point, Sequence[KernelCounters]]


class _Point(BaseModel):
    operator: str
    dims: dict[str, int]
    dtype: str
    flags: dict[str, Flag]

    @property
    def value(self) -> Point:
        return Point.of(self.operator, self.dims, self.dtype, self.flags)


class _Kernel(BaseModel):
    name: str


class _Launch(BaseModel):
    kernel: _Kernel
    arch: str | None
    device: str | None
    ranges: tuple[str, ...]
    values: dict[str, float | None]
    absent: dict[str, str]
    opcodes: dict[str, int] | None

    @property
    def value(self) -> KernelCounters:
        values = {metric.key: self.values.get(metric.key) for metric in METRICS}
        plain = self.arch, self.device, self.ranges, values, self.absent, self.opcodes
        return KernelCounters(parse(self.kernel.name), *plain)


class _Counted(BaseModel):
    point: _Point
    launches: list[_Launch]


class _Served(BaseModel):
    point: _Point
    calls: tuple[LibraryCall, ...]
    reason: str


class _CountersFile(BaseModel):
    schema_: Literal["gacprof.counters/1"] = Field(alias="schema")
    points: list[_Counted]


class _ImplementationsFile(BaseModel):
    schema_: Literal["gacprof.implementations/1"] = Field(alias="schema")
    points: list[_Served]


def write_counters(folder: Path, counters: Counters) -> Path:
    """Replace the folder's counters. Returns the file. Raises :class:`MeasurementError`."""
    rows = [
        {"point": _plain(point), "launches": [launch.as_dict() for launch in launches]}
        for point, launches in counters.items()
    ]
    return _write(folder / COUNTERS, "gacprof.counters/1", rows)


def read_counters(folder: Path) -> dict[Point, list[KernelCounters]]:
    """Launches by point; empty where none were collected. Raises :class:`MeasurementError`."""
    found = _read(folder / COUNTERS, _CountersFile)
    rows = found.points if found else []
    return {row.point.value: [launch.value for launch in row.launches] for row in rows}


def write_implementations(folder: Path, found: Sequence[CpuImplementation]) -> Path:
    """Replace the folder's CPU implementations. Returns the file. Raises as above."""
    rows = [one.as_dict() | {"point": _plain(one.point)} for one in found]
    return _write(folder / IMPLEMENTATIONS, "gacprof.implementations/1", rows)


def read_implementations(folder: Path) -> dict[Point, CpuImplementation]:
    """By point; empty where nobody asked. Raises :class:`MeasurementError` where garbled."""
    found = _read(folder / IMPLEMENTATIONS, _ImplementationsFile)
    rows = [(row.point.value, row) for row in (found.points if found else [])]
    return {point: CpuImplementation(point, row.calls, row.reason) for point, row in rows}


def _plain(point: Point) -> dict[str, Any]:
    return _Point(
        operator=point.operator, dims=point.dim, dtype=point.dtype, flags=point.flag
    ).model_dump()


def _write(path: Path, schema: str, rows: list[dict[str, Any]]) -> Path:
    try:
        write_json(path, {"schema": schema, "points": rows})
    except OSError as error:
        raise MeasurementError(f"cannot write {path}: {error.strerror or error}") from None
    return path


_File = TypeVar("_File", bound=BaseModel)


def _read(path: Path, model: type[_File]) -> _File | None:
    if not path.exists():
        return None
    try:
        return model.model_validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        why = str(error)
        if isinstance(error, ValidationError):
            fault = error.errors()[0]
            why = ": ".join(filter(None, (".".join(map(str, fault["loc"])), fault["msg"])))
        raise MeasurementError(
            f"{path} is not readable as evidence ({why}): collect it again, or delete it"
        ) from None
