"""Hardware counters out of Nsight Compute reports, with no GPU and no Nsight installed.

``ncu_report`` (the optional extra ``gacprof[ncu]``) reads an ``.ncu-rep`` anywhere. It gives no
error for a file that is cut short or no report at all, so the file's framing is checked first.
Counters that a report lacks are None, with the reason. Which architecture has which counter is
what ``libnvperf_host`` of ncu-report 2025.3 to 2026.3 lists.
"""

from __future__ import annotations

import contextlib
import importlib
import struct
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from gacprof.core.errors import MeasurementError
from gacprof.core.files import Record, read_bytes
from gacprof.devices.environment import find_ncu
from gacprof.kernels.kernel import Kernel
from gacprof.kernels.names import parse

MOST_BYTES = 8 << 30
"""Of a report: thousands of kernels with their source take a gigabyte and more."""

NSIGHT = Path("/opt/nvidia/nsight-compute")
"""Where NVIDIA's packages install it; an ``ncu`` on the path may be a script that calls it."""
MAGIC = b"NVR\x00"

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
    Metric(  # of loads through the registers: blind to TMA and cp.async
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
OPCODES = "sass__inst_executed_per_opcode_with_modifier_all"
"""Executed instructions by opcode with all modifiers: ``LDG.E.128``, ``HGMMA.64x128x16.F32``."""


def requested(arch: str | None = None) -> str:
    """The value of ncu's ``--metrics``: what that architecture has, all for an unknown one.

    Some releases of ncu only warn of a name that a chip lacks, others stop at it.
    """
    wanted = [metric.name for metric in METRICS if arch not in ALL or arch in metric.on]
    return ",".join([*wanted, OPCODES])


@dataclass(frozen=True)
class KernelCounters(Record):
    """One kernel launch as Nsight Compute saw it.

    ``values`` holds every counter of :data:`METRICS` by key, None
    where ``absent`` says why. ``opcodes`` are executed warp instructions by opcode, None where
    not collected. ``ranges`` are the NVTX ranges around the launch, outermost first.
    """

    derived: ClassVar = ("loads", "mma", "sectors_per_l2_request", "legacy_mma")

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
    def sectors_per_l2_request(self) -> float | None:
        """L2 sectors for each read request, TMA and cp.async included; 4 is a whole line."""
        sectors, requests = self.values["l2_read_sectors"], self.values["l2_read_requests"]
        return sectors / requests if sectors is not None and requests else None

    @property
    def legacy_mma(self) -> bool | None:
        """Whether a Hopper GEMM used ``mma.sync`` rather than warpgroup MMA; None elsewhere."""
        old, new = self.values["hmma_instructions"], self.values["gmma_instructions"]
        if self.arch != "sm90" or old is None or new is None or old + new == 0:
            return None
        return old > new


def read_report(path: Path) -> list[KernelCounters]:
    """All kernel launches of a report, in order.

    Raises :class:`MeasurementError` for a file that is missing, foreign, cut short or without
    a single launch, and where ``ncu_report`` is not installed.
    """
    _check_file(path)
    ncu_report = _reader()
    try:
        context = ncu_report.load_report(str(path))
        ranges = [context.range_by_idx(i) for i in range(context.num_ranges())]
        actions = [r.action_by_idx(i) for r in ranges for i in range(r.num_actions())]
    except Exception as error:  # the SWIG layer raises RuntimeError, SystemError, …
        raise MeasurementError(f"{path}: cannot be read as a report ({error})") from error
    if not actions:
        raise MeasurementError(f"{path}: the report holds no kernel launch")
    return [_read_action(action) for action in actions]


def _reader() -> Any:
    """NVIDIA's module, as a package or as it lies beside an installed Nsight Compute."""
    with contextlib.suppress(ImportError):
        return importlib.import_module("ncu_report")
    ncu = find_ncu()
    beside = Path(ncu).resolve().parent.glob("extras/python") if ncu else ()
    for folder in (*beside, *sorted(NSIGHT.glob("*/extras/python"), reverse=True)):
        sys.path.append(str(folder))
        with contextlib.suppress(ImportError):
            return importlib.import_module("ncu_report")
        sys.path.remove(str(folder))
    raise MeasurementError(
        "reading Nsight Compute reports needs ncu_report: pip install 'gacprof[ncu]'"
    )


def _check_file(path: Path) -> None:
    """Walk the file's blocks: each a length, a header of that length, a payload it names."""
    try:
        data = read_bytes(path, most=MOST_BYTES)
    except OSError as error:
        raise MeasurementError(f"{path}: cannot be read ({error.strerror})") from error
    if not data.startswith(MAGIC):
        raise MeasurementError(f"{path}: is not an Nsight Compute report (.ncu-rep)")
    at, blocks = len(MAGIC), 0
    while at < len(data):
        size = struct.unpack_from("<I", data, at)[0] if at + 4 <= len(data) else None
        end = at + 4 + size if size is not None else len(data) + 1
        payload = _payload_size(data[at + 4 : end]) if end <= len(data) else 0
        at = end + payload
        blocks += 1
    if at > len(data) or blocks < 2:
        raise MeasurementError(
            f"{path}: is cut short ({len(data)} bytes, at least {max(at, len(data) + 1)} needed): "
            "copy it again"
        )


def _payload_size(header: bytes) -> int:
    """Field 5 of a block's header, a protobuf message; 0 where there is none."""
    at, value, shift = 0, 0, 0
    key: int | None = None
    while at < len(header) and shift < 64:
        byte, at = header[at], at + 1
        value |= (byte & 127) << shift
        shift += 7
        if byte >= 128:  # a number goes on while its bytes' highest bit is set
            continue
        if key is None:
            key = value
        elif key >> 3 == 5 and key & 7 == 0:
            return value
        else:
            at += value if key & 7 == 2 else 0  # length-delimited: the value is the length
            key = None
        value = shift = 0
    return 0


def _read_action(action: Any) -> KernelCounters:
    arch = _arch(action)
    values: dict[str, float | None] = {}
    absent: dict[str, str] = {}
    for metric in METRICS:
        found = _number(action, metric.name)
        values[metric.key] = found
        if found is None:
            absent[metric.key] = (
                f"{arch} has no counter {metric.name}"
                if arch and arch not in metric.on
                else f"the report was collected without {metric.name}"
            )
    opcodes = _opcodes(action)
    if opcodes is None:
        absent["opcodes"] = f"the report was collected without {OPCODES}"
    name = action.name(action.NameBase_DEMANGLED) or action.name()
    return KernelCounters(
        kernel=parse(str(name)),
        arch=arch,
        device=_text(action, "device__attribute_display_name"),
        ranges=_ranges(action),
        values=values,
        absent=absent,
        opcodes=opcodes,
    )


def _number(action: Any, name: str) -> float | None:
    metric = action.metric_by_name(name)
    if metric is None or not metric.has_value():
        return None
    value = metric.value()
    return float(value) if isinstance(value, int | float) else None


def _text(action: Any, name: str) -> str | None:
    metric = action.metric_by_name(name)
    return str(metric.value()) if metric is not None and metric.has_value() else None


def _arch(action: Any) -> str | None:
    major = _number(action, "device__attribute_compute_capability_major")
    minor = _number(action, "device__attribute_compute_capability_minor")
    return None if major is None or minor is None else f"sm{int(major)}{int(minor)}"


def _opcodes(action: Any) -> dict[str, int] | None:
    metric = action.metric_by_name(OPCODES)
    if metric is None or not metric.has_correlation_ids():
        return None
    names = metric.correlation_ids()
    return {names.as_string(i): metric.as_uint64(i) for i in range(metric.num_instances())}


def _ranges(action: Any) -> tuple[str, ...]:
    state = action.nvtx_state()
    if state is None:
        return ()
    return tuple(
        str(name) for i in state.domains() for name in state.domain_by_id(i).push_pop_ranges()
    )


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
