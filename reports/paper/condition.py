"""The device's state of the moment: who shares it, what slows it, what its memory suffered.

Read only; nothing is set. What cannot be read is said to be unknown, never taken for good.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gacprof.core.errors import first_line
from gacprof.devices.nvml import SLOWED_BY, open_nvml

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
    """``mark`` says that numbers taken now suffer from it."""

    words: str
    mark: bool = True


def look(device: str) -> list[Finding]:
    """What is to be said of ``cpu`` or ``cuda:N`` now. Never raises."""
    kind, _, index = device.partition(":")
    return _gpu(int(index or 0)) if kind == "cuda" else [_cpu()]


def _cpu() -> Finding:
    cores = os.cpu_count() or 1
    try:
        load = os.getloadavg()[0]
    except OSError:
        return Finding("the load of this machine cannot be read", mark=False)
    words = f"load {load:.1f} on {cores} cores over the last minute (this survey's own included)"
    return Finding(words, mark=load > cores * (1 + BUSY))


def _gpu(index: int) -> list[Finding]:
    try:
        nvml, handle = open_nvml(index)
    except Exception as error:  # NVML's absence takes many forms and is never fatal
        reason = f"{type(error).__name__}: {first_line(error)}"
        unknown = "sharing, throttling and ECC errors are unknown"
        return [Finding(f"NVML cannot be read ({reason}): {unknown}")]
    found = []
    for about, read in READINGS.items():
        try:
            finding = read(nvml, handle)
        except Exception as error:  # NVMLError: each reading may lack support on its own
            finding = Finding(f"{about}: not readable ({error})", mark=False)
        found += [finding] if finding else []
    return found


def _slice(nvml: Any, handle: Any) -> Finding | None:
    told = nvml.nvmlDeviceIsMigDeviceHandle(handle)
    if not getattr(told, "value", told):  # pynvml gives the C integer itself
        return None
    return Finding("a MIG slice: part of the GPU's SMs, cache and bandwidth, not a GPU")


def _mode(nvml: Any, handle: Any) -> Finding | None:
    if nvml.nvmlDeviceGetComputeMode(handle) not in (EXCLUSIVE_THREAD, EXCLUSIVE_PROCESS):
        return None
    return Finding(
        "one process at a time may use this GPU (exclusive compute mode): a sweep's worker "
        "beside this process may be refused; 'nvidia-smi -c DEFAULT' as root allows both",
        mark=False,
    )


def _shared(nvml: Any, handle: Any) -> Finding | None:
    """Compute processes other than this one and its own workers. NVML counts in the host's
    process ids: inside a container our own may be listed under a number that means nothing here.
    """
    running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    others = [process for process in running if not _ours(process.pid)]
    if not others:
        return None
    stranger = any(not Path(f"/proc/{process.pid}").exists() for process in others)
    listed = ", ".join(f"pid {process.pid}{_held(process)}" for process in others[:5])
    maybe = " (one may be this process, seen from outside its container)" if stranger else ""
    words = f"shared with {len(others)} other compute processes: {listed}{maybe}"
    return Finding(words, mark=len(others) > stranger)


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


def _throttled(nvml: Any, handle: Any) -> Finding | None:
    bits = nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    reasons = [words for bit, words in SLOWED_BY.items() if bits & bit]
    return Finding(f"running below its clock: {', '.join(reasons)}") if reasons else None


def _ecc(nvml: Any, handle: Any) -> Finding | None:
    count = nvml.nvmlDeviceGetTotalEccErrors(handle, UNCORRECTED, SINCE_BOOT)
    words = f"{count} uncorrected memory (ECC) errors since the driver was loaded"
    return Finding(words) if count else None


def _memory(nvml: Any, handle: Any) -> Finding | None:
    total = nvml.nvmlDeviceGetMemoryInfo(handle).total
    words = f"{total / 2**30:.0f} GiB of memory: large points and layers are left out"
    return Finding(words, mark=False) if total < SMALL_MEMORY else None


def _clocks(nvml: Any, handle: Any) -> Finding:
    now = nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)
    most = nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)
    return Finding(f"SM clock {now} of at most {most} MHz", mark=False)


READINGS: dict[str, Callable[[Any, Any], Finding | None]] = {
    "mig": _slice, "mode": _mode, "shared": _shared, "throttled": _throttled, "ecc": _ecc,
    "memory": _memory, "clocks": _clocks,
}  # fmt: skip
