"""Evidence kept in a sweep's folder with its samples: counters of kernel launches, and which CPU
implementation served.

Both are JSON, read without the tools that made them. A folder without them is a folder whose
evidence was not collected: reading gives nothing and no error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from pydantic import BaseModel, Field, ValidationError

from gacprof.core.errors import MeasurementError
from gacprof.core.files import Record, plain, read_bytes, write_json
from gacprof.core.points import Flag, Point
from gacprof.kernels.names import Kernel, parse
from gacprof.kernels.onednn import CpuImplementation, LibraryCall

AMPERE = ("sm80", "sm86", "sm89")
HOPPER = ("sm90",)
BLACKWELL = ("sm100", "sm103", "sm120", "sm121")
ALL = AMPERE + HOPPER + BLACKWELL


class Metric(NamedTuple):
    """``key`` is our name, with its unit; ``name`` Nsight Compute's."""

    key: str
    name: str
    on: tuple[str, ...] = ALL


_PIPE = "sm__inst_executed_pipe"
_OF_PEAK = "avg.pct_of_peak_sustained_elapsed"
METRICS = (
    Metric("duration_ns", "gpu__time_duration.sum"),
    Metric("tensor_active_pct", f"sm__pipe_tensor_cycles_active.{_OF_PEAK}"),
    Metric("tensor_instructions", f"{_PIPE}_tensor.sum"),
    Metric("hmma_instructions", f"{_PIPE}_tensor_op_hmma.sum", AMPERE + HOPPER),  # mma.sync, fp16
    Metric("gmma_instructions", f"{_PIPE}_tensor_op_gmma.sum", HOPPER),  # warpgroup MMA
    Metric("subpipe_hmma_instructions", f"{_PIPE}_tensor_subpipe_hmma.sum", BLACKWELL),
    Metric("l2_read_sectors", "lts__t_sectors_op_read.sum"),  # of 32 bytes
    Metric("l2_read_requests", "lts__t_requests_op_read.sum"),
    Metric("l2_throughput_pct", f"lts__throughput.{_OF_PEAK}"),
    Metric("dram_read_bytes", "dram__bytes_read.sum"),
    Metric("dram_write_bytes", "dram__bytes_write.sum"),
    Metric(  # of loads through the registers, without TMA and cp.async
        "lsu_sectors_per_request",
        "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio",
    ),
    Metric("global_loads", "smsp__sass_inst_executed_op_global_ld.sum"),  # through the registers
    Metric("async_copies", "smsp__sass_inst_executed_op_ldgsts.sum"),  # cp.async
    Metric("tma_instructions", f"{_PIPE}_tma.sum", HOPPER + BLACKWELL),
    Metric("waves_per_sm", "launch__waves_per_multiprocessor"),  # blocks per slot for them
    Metric("blocks", "launch__grid_size"),
    Metric("threads_per_block", "launch__block_size"),
    Metric("registers_per_thread", "launch__registers_per_thread"),
    Metric("shared_bytes_per_block", "launch__shared_mem_per_block"),
    Metric("l2_theoretical_sectors", "memory_l2_theoretical_sectors_global"),
    Metric("l2_ideal_sectors", "memory_l2_theoretical_sectors_global_ideal"),  # whole accesses
)


@dataclass(frozen=True)
class KernelCounters(Record):
    """One kernel launch as Nsight Compute saw it.

    ``values`` holds every counter of :data:`METRICS` by key, None
    where ``absent`` says why. ``opcodes`` are executed warp instructions by opcode, None where
    not collected. ``ranges`` are the NVTX ranges around the launch, outermost first.
    """

    derived: ClassVar = ("loads", "mma", "legacy_mma")

    kernel: Kernel
    arch: str | None
    device: str | None
    ranges: tuple[str, ...]
    values: Mapping[str, float | None]
    absent: Mapping[str, str]
    opcodes: Mapping[str, int] | None = None

    @property
    def loads(self) -> dict[str, int] | None:
        """Executed global loads by kind and bytes: ``{"LDG.8": n, "LDGSTS.16": n, "TMA": n}``."""
        return self._summed(_load_kind)

    @property
    def mma(self) -> dict[str, int] | None:
        """Executed tensor-core instructions by opcode family: ``{"HMMA": n, "HGMMA": n}``."""
        return self._summed(_mma_kind)

    def _summed(self, kind_of: Callable[[str], str | None]) -> dict[str, int] | None:
        if self.opcodes is None:
            return None
        found: Counter[str] = Counter()
        for opcode, count in self.opcodes.items():
            if kind := kind_of(opcode):
                found[kind] += count
        return dict(found)

    @property
    def legacy_mma(self) -> bool | None:
        """Whether a Hopper GEMM used ``mma.sync`` rather than warpgroup MMA; None elsewhere."""
        old, new = self.values["hmma_instructions"], self.values["gmma_instructions"]
        if self.arch != "sm90" or old is None or new is None or old + new == 0:
            return None
        return old > new


def _mma_kind(opcode: str) -> str | None:
    base = opcode.split(".")[0]
    return base if base.endswith("MMA") else None


_WIDTHS = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}


def _load_kind(opcode: str) -> str | None:
    """``LDG.E.128`` → ``LDG.16``; ``LDGSTS.E`` → ``LDGSTS.4``; bulk copies → ``TMA``."""
    base, *modifiers = opcode.split(".")
    if base in ("UTMALDG", "UBLKCP"):
        return "TMA"
    if base not in ("LDG", "LDGSTS"):
        return None
    width = next((_WIDTHS[m] for m in modifiers if m in _WIDTHS), 4)
    return f"{base}.{width}"


COUNTERS, IMPLEMENTATIONS = "ncu.json", "implementations.json"
SCHEMAS = {COUNTERS: "gacprof.counters/1", IMPLEMENTATIONS: "gacprof.implementations/1"}
Counters = Mapping[Point, Sequence[KernelCounters]]


class _Point(BaseModel):
    operator: str
    dims: dict[str, int]
    dtype: str
    flags: dict[str, Flag]


class _KernelName(BaseModel):
    name: str


class _Launch(BaseModel):
    kernel: _KernelName
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


class _Implemented(BaseModel):
    point: _Point
    calls: tuple[LibraryCall, ...]
    reason: str


_Row = TypeVar("_Row", _Counted, _Implemented)


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
    found = _read(folder / IMPLEMENTATIONS, _File[_Implemented])
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
