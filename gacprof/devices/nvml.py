"""NVML: what a GPU says of itself beside its timings, and its clock locked for a sweep.

Nothing but :func:`locked` changes anything. Locking needs root (or the driver's permission), and
outlives the process that did it: it is undone on every way out of the context, SIGTERM and SIGHUP
(a closed terminal) included. Only SIGKILL or a power cut leave it;
``nvidia-smi --reset-gpu-clocks`` undoes it.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from types import FrameType
from typing import Any

from gacprof.core.errors import MeasurementError

SLOWED_BY = {
    0x0000000000000004: "software power cap",
    0x0000000000000008: "hardware slowdown",
    0x0000000000000020: "software thermal slowdown",
    0x0000000000000040: "hardware thermal slowdown",
    0x0000000000000080: "hardware power brake",
}
"""Bits of nvmlDeviceGetCurrentClocksEventReasons (nvml.h) that mean a forced slowdown.

Idle (0x1), application clocks (0x2) and sync boost (0x10) are no faults of the moment.
"""

POLICIES = {74: "software power cap", 75: "thermal slowdown"}
"""Fields of nvmlDeviceGetFieldValues (nvml.h): nanoseconds for which a GPU was held below its
clock, since the driver was loaded, by the policies NVML_PERF_POLICY_POWER and _THERMAL."""

SLOWDOWNS = ("software thermal slowdown", "hardware thermal slowdown", "hardware power brake")
"""The same by cause, NVML_FI_DEV_CLOCKS_EVENT_REASON_*, from three fields in a row on."""
FIRST_SLOWDOWN = {(580, 82): 269, (575, 0): 251}
"""Its number, from that driver on. NVIDIA renumbered it within the 580 branch (nvidia-ml-py
12.575.51 and 13.580.65 have 251, 13.580.82 and later 269); what the number means to other drivers
is a setting of power smoothing. Older drivers count no such thing."""

READING_S = 0.1
"""How long a reading stands for: NVML renews power at this pace and averages it over longer,
and temperature changes slower still, while a block takes some milliseconds."""

THROTTLED_SHARE = 0.02
"""Of a block's time: what a counter must have grown by for the block to count as throttled."""

TOLERANCE_MHZ = 30
"""Twice the 15 MHz step of NVIDIA's clocks: what a lock that holds may still be off by."""

LOADS = 20
"""Times that the load runs until a lock must hold: NVML renews its clock reading only so often,
and a GPU that idled takes a moment to climb."""

UNDO = "nvidia-smi --reset-gpu-clocks"


def open_nvml(index: int) -> tuple[Any, Any]:
    """NVML and its handle of the CUDA device of that index. Raises whatever NVML raises.

    NVML counts all GPUs, CUDA only the visible ones: the UUID joins the two. torch gives it
    without the prefix that in NVML marks a GPU or a MIG slice of one.
    """
    import pynvml
    import torch

    pynvml.nvmlInit()
    uuid = str(torch.cuda.get_device_properties(index).uuid)
    prefixes = ("",) if uuid.startswith(("GPU-", "MIG-")) else ("GPU-", "MIG-")
    refused = []
    for prefix in prefixes:
        try:
            return pynvml, pynvml.nvmlDeviceGetHandleByUUID(f"{prefix}{uuid}".encode())
        except pynvml.NVMLError as error:
            refused.append(error)
    raise refused[0]


def counters(driver: str | None) -> dict[int, str]:
    """Fields that count for how long the clock was held down, by the driver's own numbers."""
    numbers = [int(part) for part in (driver or "").split(".")[:2] if part.isdigit()]
    known = (first for since, first in FIRST_SLOWDOWN.items() if numbers >= list(since))
    first = next(known, None)
    return POLICIES | ({} if first is None else dict(enumerate(SLOWDOWNS, first)))


class Telemetry:
    """NVML for one CUDA device; every reading is None or empty where NVML is not to be had."""

    def __init__(self, index: int) -> None:
        self.why_not = ""
        self.nvml: Any = None
        self.handle: Any = None
        self._read_at = float("-inf")
        self._reading: dict[str, Any] = {}
        try:
            self.nvml, self.handle = open_nvml(index)
        except Exception as error:  # NVML's absence takes many forms and is never fatal
            self.why_not = f"{type(error).__name__}: {error}"

    def driver(self) -> str | None:
        return self._read("nvmlSystemGetDriverVersion", needs_handle=False)

    @cached_property
    def _counters(self) -> dict[int, str]:
        return counters(self.driver())

    def sm_clock_mhz(self) -> int | None:
        if self.handle is None:
            return None
        return self._read("nvmlDeviceGetClockInfo", self.nvml.NVML_CLOCK_SM)

    def reading(self) -> dict[str, Any]:
        """Memory clock, temperature and power, by the names of a block's fields.

        At most :data:`READING_S` old.
        """
        if self.handle is None:
            return {}
        if time.monotonic() - self._read_at >= READING_S:
            self._reading = self._read_anew()
            self._read_at = time.monotonic()
        return dict(self._reading)

    def _read_anew(self) -> dict[str, Any]:
        nvml, power_w = self.nvml, self._watts("nvmlDeviceGetPowerUsage")
        return {
            "mem_clock_mhz": self._read("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
            "temperature_c": self._read("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
            "power_w": power_w,
        }

    def _watts(self, function: str) -> float | None:
        milliwatts = self._read(function)
        return None if milliwatts is None else milliwatts / 1e3

    def slowed_ns(self) -> dict[str, int]:
        """For how long each cause has held the clock down, in nanoseconds, since the driver was
        loaded; empty where NVML does not count."""
        if self.handle is None:
            return {}
        fields = self._counters
        values = self._read("nvmlDeviceGetFieldValues", list(fields)) or ()
        return {fields[v.fieldId]: int(v.value.ullVal) for v in values if not v.nvmlReturn}

    def slowed_since(self, before: Mapping[str, int], seconds: float) -> str:
        """What has held the clock down for :data:`THROTTLED_SHARE` of the ``seconds`` since
        ``before`` was read. Where nothing is counted, what does so at this moment."""
        now = self.slowed_ns()
        if not now or not before:
            return self.throttle_reason()
        least = THROTTLED_SHARE * seconds * 1e9
        return ", ".join(n for n, ns in now.items() if ns - before.get(n, ns) > least)

    def fixed(self) -> dict[str, Any]:
        """What is set for the whole sweep: power limit, VBIOS, ECC, persistence. None where NVML
        does not know."""
        power_limit_w = self._watts("nvmlDeviceGetEnforcedPowerLimit")
        ecc = self._read("nvmlDeviceGetEccMode")
        persistent = self._read("nvmlDeviceGetPersistenceMode")
        return {
            "power_limit_w": power_limit_w,
            "vbios": self._read("nvmlDeviceGetVbiosVersion"),
            "ecc": None if ecc is None else bool(ecc[0]),
            "persistence": None if persistent is None else bool(persistent),
        }

    def throttle_reason(self) -> str:
        bits = self._read("nvmlDeviceGetCurrentClocksEventReasons") or 0
        return ", ".join(name for bit, name in SLOWED_BY.items() if bits & bit)

    def _read(self, function: str, *arguments: Any, needs_handle: bool = True) -> Any:
        if self.handle is None:
            return None
        first = (self.handle,) if needs_handle else ()
        try:
            value = getattr(self.nvml, function)(*first, *arguments)
        except (AttributeError, self.nvml.NVMLError) as error:  # the former: an older pynvml
            self.why_not = str(error)
            return None
        return value.decode() if isinstance(value, bytes) else value


@contextmanager
def locked(nvml: Any, handle: Any, mhz: int, load: Callable[[], object]) -> Iterator[None]:
    """Hold the SM clock at ``mhz`` meanwhile. ``load`` keeps the GPU busy until it is checked.

    Raises :class:`MeasurementError` where NVML refuses, or where the clock does not hold; the
    lock is undone before that is raised. Raises it too where undoing is refused.
    """
    with _exit_on_signals():  # before the lock, so that no moment of it is unguarded
        try:
            nvml.nvmlDeviceSetGpuLockedClocks(handle, mhz, mhz)
        except (AttributeError, nvml.NVMLError) as error:
            raise MeasurementError(
                f"the clock cannot be locked at {mhz} MHz ({error}): it needs root and a clock "
                "that 'nvidia-smi -q -d SUPPORTED_CLOCKS' lists; leave --lock-clocks out to "
                "measure at whatever clock the GPU holds"
            ) from None
        try:
            _verify(nvml, handle, mhz, load)
            yield
        finally:
            _undo(nvml, handle)


def _verify(nvml: Any, handle: Any, mhz: int, load: Callable[[], object]) -> None:
    for _ in range(LOADS):
        load()
        try:
            held = nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)
        except nvml.NVMLError as error:
            raise MeasurementError(
                f"the clock was locked at {mhz} MHz but cannot be read ({error})"
            ) from None
        if abs(held - mhz) <= TOLERANCE_MHZ:
            return
    raise MeasurementError(
        f"the clock was locked at {mhz} MHz but runs at {held} MHz under load "
        "(power or thermal limit?): choose a lower one"
    )


def _undo(nvml: Any, handle: Any) -> None:
    try:
        nvml.nvmlDeviceResetGpuLockedClocks(handle)
    except nvml.NVMLError as error:
        raise MeasurementError(
            f"the clock is still locked, undoing it was refused ({error}): run '{UNDO}' as root"
        ) from None


@contextmanager
def _exit_on_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP as SystemExit, so that contexts are left properly. Main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    heeded = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, leave) for number in heeded}  # nohup ignores SIGHUP
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
