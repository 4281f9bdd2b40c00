"""Evidence kept in a sweep's folder with its samples: counters and CPU implementations.

Both are JSON, read without the tools that made them. A folder without them is a folder whose
evidence was not collected: reading gives nothing and no error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, Field, ValidationError

from gacprof.core.errors import MeasurementError
from gacprof.core.files import plain, read_bytes, write_json
from gacprof.core.points import Flag, Point
from gacprof.kernels.names import parse
from gacprof.kernels.ncu import METRICS, KernelCounters
from gacprof.kernels.onednn import CpuImplementation, LibraryCall

COUNTERS, IMPLEMENTATIONS = "ncu.json", "implementations.json"
SCHEMAS = {COUNTERS: "gacprof.counters/1", IMPLEMENTATIONS: "gacprof.implementations/1"}
Counters = Mapping[Point, Sequence[KernelCounters]]


class _Point(BaseModel):
    operator: str
    dims: dict[str, int]
    dtype: str
    flags: dict[str, Flag]


class _Name(BaseModel):
    name: str


class _Launch(BaseModel):
    kernel: _Name
    arch: str | None
    device: str | None
    ranges: tuple[str, ...]
    values: dict[str, float | None]
    absent: dict[str, str]
    opcodes: dict[str, int] | None

    @property
    def value(self) -> KernelCounters:
        fields = dict(self)
        fields["kernel"] = parse(self.kernel.name)
        fields["values"] = {metric.key: self.values.get(metric.key) for metric in METRICS}
        return KernelCounters(**fields)


class _Counted(BaseModel):
    point: _Point
    launches: list[_Launch]


class _Served(BaseModel):
    point: _Point
    calls: tuple[LibraryCall, ...]
    reason: str


_Row = TypeVar("_Row", _Counted, _Served)


class _File(BaseModel, Generic[_Row]):
    schema_: str = Field(alias="schema")
    points: list[_Row]


def write_counters(folder: Path, counters: Counters) -> Path:
    """Replace the folder's counters. Returns the file. Raises :class:`MeasurementError`."""
    return _write(folder / COUNTERS, {p: {"launches": plain(c)} for p, c in counters.items()})


def read_counters(folder: Path) -> dict[Point, list[KernelCounters]]:
    """Launches by point; empty where none were collected. Raises :class:`MeasurementError`."""
    found = _read(folder / COUNTERS, _File[_Counted])
    return {point: [launch.value for launch in row.launches] for point, row in found.items()}


def write_implementations(folder: Path, found: Sequence[CpuImplementation]) -> Path:
    """Replace the folder's CPU implementations. Returns the file. Raises as above."""
    return _write(folder / IMPLEMENTATIONS, {one.point: one.as_dict() for one in found})


def read_implementations(folder: Path) -> dict[Point, CpuImplementation]:
    """By point; empty where nobody asked. Raises :class:`MeasurementError` where garbled."""
    found = _read(folder / IMPLEMENTATIONS, _File[_Served])
    return {p: CpuImplementation(p, row.calls, row.reason) for p, row in found.items()}


def _write(path: Path, rows: Mapping[Point, dict[str, Any]]) -> Path:
    listed = [
        row | {"point": {"operator": p.operator, "dims": p.dim, "dtype": p.dtype, "flags": p.flag}}
        for p, row in rows.items()
    ]
    try:
        write_json(path, {"schema": SCHEMAS[path.name], "points": listed})
    except OSError as error:
        raise MeasurementError(f"cannot write {path}: {error.strerror or error}") from None
    return path


def _read(path: Path, model: type[_File[_Row]]) -> dict[Point, _Row]:
    """The file's rows by point; empty where there is no file."""
    if not path.exists():
        return {}
    try:
        file = model.model_validate_json(read_bytes(path))
        if file.schema_ != SCHEMAS[path.name]:
            raise ValueError(f"its schema is {file.schema_!r}, not {SCHEMAS[path.name]!r}")
    except (OSError, ValueError) as error:
        why = str(error)
        if isinstance(error, ValidationError):
            fault = error.errors()[0]
            why = ": ".join(filter(None, (".".join(map(str, fault["loc"])), fault["msg"])))
        raise MeasurementError(
            f"{path} is not readable as evidence ({why}): collect it again, or delete it"
        ) from None
    return {Point.of(**dict(row.point)): row for row in file.points}
