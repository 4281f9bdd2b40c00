"""Stage ``doctor``: what can be measured here, and the device's state of the moment.

Read only; nothing is set. A finding is a sentence, and ``mark`` says that numbers suffer from
it. What cannot be read is said to be unknown, never taken for good.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gacprof.core.files import write_json
from gacprof.devices.doctor import examine as checks
from gacprof.devices.nvml import SLOWED_BY, open_nvml, slowdown_bits
from gacprof.survey.setting import Setting
from gacprof.survey.state import Outcome

SMALL_MEMORY = 12 << 30
"""Below this an 8-billion-parameter model of 16-bit weights is run with few of its layers."""

UNCORRECTED, SINCE_BOOT = 1, 0
"""NVML_MEMORY_ERROR_TYPE_UNCORRECTED and NVML_VOLATILE_ECC (nvml.h)."""

EXCLUSIVE_THREAD, EXCLUSIVE_PROCESS = 1, 3
"""NVML_COMPUTEMODE_EXCLUSIVE_THREAD and NVML_COMPUTEMODE_EXCLUSIVE_PROCESS (nvml.h)."""

BUSY = 0.5
"""Load beyond our own by this share of the cores disturbs a CPU's timings."""


@dataclass(frozen=True)
class Finding:
    """``kind`` is shared, exclusive, throttled, ecc, mig, memory, busy, unknown or clocks."""

    kind: str
    words: str
    mark: bool = True


@dataclass(frozen=True)
class Condition:
    """The findings of one look at the device; ``at`` is seconds since the epoch."""

    at: float
    findings: tuple[Finding, ...] = field(default=())

    @property
    def marks(self) -> tuple[str, ...]:
        """What numbers taken now suffer from."""
        return tuple(finding.words for finding in self.findings if finding.mark)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def look(index: int | None) -> Condition:
    """The condition of the CUDA device of that index, or of the CPU (None). Never raises."""
    read = _cpu if index is None else lambda: _gpu(index)
    return Condition(time.time(), tuple(read()))


def _cpu() -> Iterator[Finding]:
    cores = os.cpu_count() or 1
    try:
        load = os.getloadavg()[0]
    except OSError:
        yield Finding("unknown", "the load of this machine cannot be read", mark=False)
        return
    words = f"load {load:.1f} on {cores} cores over the last minute (this survey's own included)"
    yield Finding("busy", words, mark=load > cores * (1 + BUSY))


def _gpu(index: int) -> Iterator[Finding]:
    try:
        nvml, handle = open_nvml(index)
    except Exception as error:  # NVML's absence takes many forms and is never fatal
        reason = f"{type(error).__name__}: {error}"
        words = f"NVML cannot be read ({reason}): sharing, throttling and ECC errors are unknown"
        yield Finding("unknown", words)
        return
    for read in (_mig, _mode, _shared, _throttled, _ecc, _memory, _clocks):
        try:
            yield from read(nvml, handle)
        except Exception as error:  # NVMLError: each reading may lack support on its own
            about = read.__name__.strip("_")
            yield Finding("unknown", f"{about}: not readable ({error})", mark=False)


def _mig(nvml: Any, handle: Any) -> Iterator[Finding]:
    told = nvml.nvmlDeviceIsMigDeviceHandle(handle)
    if getattr(told, "value", told):  # pynvml gives the C integer itself
        yield Finding("mig", "a MIG slice: part of the GPU's SMs, cache and bandwidth, not a GPU")


def _mode(nvml: Any, handle: Any) -> Iterator[Finding]:
    if nvml.nvmlDeviceGetComputeMode(handle) in (EXCLUSIVE_THREAD, EXCLUSIVE_PROCESS):
        yield Finding(
            "exclusive",
            "one process at a time may use this GPU (exclusive compute mode): a sweep's worker "
            "beside this process may be refused; 'nvidia-smi -c DEFAULT' as root allows both",
            mark=False,
        )


def _shared(nvml: Any, handle: Any) -> Iterator[Finding]:
    """Compute processes other than this one and its own workers. NVML counts in the host's
    process ids: inside a container our own may be listed under a number that means nothing here.
    """
    running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    others = [p for p in running if not _ours(p.pid)]
    strangers = [p for p in others if not Path(f"/proc/{p.pid}").exists()]
    if not others:
        return
    listed = ", ".join(f"pid {p.pid}{_held(p)}" for p in others[:5])
    maybe = " (one may be this process, seen from outside its container)" if strangers else ""
    surely = len(others) > (1 if strangers else 0)
    words = f"shared with {len(others)} other compute processes: {listed}{maybe}"
    yield Finding("shared", words, mark=surely)


def _ours(pid: int) -> bool:
    """Whether that process is this one or was started by it, at any remove."""
    while pid > 1:
        if pid == os.getpid():
            return True
        try:
            status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
            pid = int(status.split("\nPPid:", 1)[1].split("\n", 1)[0])
        except (OSError, IndexError, ValueError):
            return False
    return False


def _held(process: Any) -> str:
    used = getattr(process, "usedGpuMemory", None)
    return f" with {used / 2**20:.0f} MiB" if isinstance(used, int) else ""


def _throttled(nvml: Any, handle: Any) -> Iterator[Finding]:
    bits = slowdown_bits(nvml, handle)
    reasons = [words for bit, words in SLOWED_BY.items() if bits & bit]
    if reasons:
        yield Finding("throttled", f"running below its clock: {', '.join(reasons)}")


def _ecc(nvml: Any, handle: Any) -> Iterator[Finding]:
    count = nvml.nvmlDeviceGetTotalEccErrors(handle, UNCORRECTED, SINCE_BOOT)
    if count:
        yield Finding("ecc", f"{count} uncorrected memory (ECC) errors since the driver was loaded")


def _memory(nvml: Any, handle: Any) -> Iterator[Finding]:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    if memory.total < SMALL_MEMORY:
        words = f"{memory.total / 2**30:.0f} GiB of memory: large points and layers are left out"
        yield Finding("memory", words, mark=False)


def _clocks(nvml: Any, handle: Any) -> Iterator[Finding]:
    now = nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)
    most = nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)
    yield Finding("clocks", f"SM clock {now} of at most {most} MHz", mark=False)


FILE = "doctor.json"


def examine(setting: Setting) -> Outcome:
    """Write ``doctor.json``. What the device suffers from becomes the stage's notes."""
    found = [check.as_dict() for check in checks()]
    now = look(setting.machine.index)
    looks = [*_earlier(setting), now.as_dict()]
    write_json(setting.folder / FILE, {"checks": found, "conditions": looks})
    lacking = [f"{c['name']}: {c['note']}" for c in found if c["available"] is False]
    return Outcome(artefacts=(FILE,), notes=(*now.marks, *lacking))


def look_again(setting: Setting) -> Condition:
    """The condition now, added to ``doctor.json``: a device may change under a long survey."""
    now = look(setting.machine.index)
    data = read(setting)
    data["conditions"] = [*data.get("conditions", []), now.as_dict()]
    write_json(setting.folder / FILE, data)
    return now


def read(setting: Setting) -> dict[str, Any]:
    """``doctor.json``, empty where it is not there."""
    try:
        data = json.loads((setting.folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _earlier(setting: Setting) -> list[dict[str, Any]]:
    return list(read(setting).get("conditions", []))
