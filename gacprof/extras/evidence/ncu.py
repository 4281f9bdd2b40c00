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
from pathlib import Path
from typing import Any

from gacprof.core.errors import MeasurementError
from gacprof.core.files import read_bytes
from gacprof.devices.environment import find_ncu
from gacprof.kernels.evidence import ALL, METRICS, KernelCounters
from gacprof.kernels.names import parse

MOST_BYTES = 8 << 30
"""Of a report: thousands of kernels with their source take a gigabyte and more."""

NSIGHT = Path("/opt/nvidia/nsight-compute")
"""Where NVIDIA's packages install it; an ``ncu`` on the path may be a script that calls it."""
MAGIC = b"NVR\x00"

OPCODES = "sass__inst_executed_per_opcode_with_modifier_all"
"""Executed instructions by opcode with all modifiers: ``LDG.E.128``, ``HGMMA.64x128x16.F32``."""


def requested(arch: str | None = None) -> str:
    """The value of ncu's ``--metrics``: what that architecture has, all for an unknown one.

    Some releases of ncu only warn of a name that a chip lacks, others stop at it.
    """
    wanted = [metric.name for metric in METRICS if arch not in ALL or arch in metric.on]
    return ",".join([*wanted, OPCODES])


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
    installed = Path(ncu).resolve().parent.glob("extras/python") if ncu else ()
    for folder in (*installed, *sorted(NSIGHT.glob("*/extras/python"), reverse=True)):
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
