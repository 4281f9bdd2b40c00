"""Ask NVIDIA's management library about a GPU: its driver, limits, modes and throttling."""

import os
from contextlib import suppress
from typing import Any

import torch

# Fields of nvmlDeviceGetFieldValues (nvml.h): nanoseconds below the clock, by reason.
POLICIES = (74, 75)  # NVML_PERF_POLICY_POWER and _THERMAL
# First of three NVML_FI_DEV_CLOCKS_EVENT_REASON_* (software thermal, hardware thermal, power brake)
# from that driver on: renumbered between nvidia-ml-py 13.580.65 and 13.580.82.
FIRST_REASON = {(580, 82): 269, (575, 0): 251}
THROTTLED_SHARE = 0.02  # of a block's time, by which a counter has grown in a throttled block


def nvml() -> Any:
    """Return NVML, ready to be asked. Raises where it is not to be had, in many ways."""
    import pynvml

    pynvml.nvmlInit()
    return pynvml


def handle_of(index: int) -> Any:
    """Return NVML's handle of a CUDA device."""
    # By its UUID: NVML counts all GPUs, CUDA the visible ones. torch leaves out the prefix.
    uuid = str(torch.cuda.get_device_properties(index).uuid)
    library = nvml()
    try:
        return library.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode())
    except library.NVMLError:
        return library.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}".encode())


def driver_version() -> str:
    with suppress(Exception):  # its absence takes many forms and is never fatal
        return str(nvml().nvmlSystemGetDriverVersion())
    return ""


def counter_fields(driver: str) -> list[int]:
    """Return the fields that count throttled nanoseconds in a driver of version ``580.95.05``."""
    numbers = tuple(int(part) for part in driver.split(".")[:2] if part.isdigit())
    for since, first in FIRST_REASON.items():
        if numbers >= since:
            return [*POLICIES, first, first + 1, first + 2]
    return list(POLICIES)


def nvml_facts(library: Any, handle: Any) -> dict[str, int]:
    """Return limits, modes and other processes that decide how fast a GPU runs, as known."""
    questions = {
        "power_limit_w": lambda: library.nvmlDeviceGetEnforcedPowerLimit(handle) // 1000,
        "max_sm_mhz": lambda: library.nvmlDeviceGetMaxClockInfo(handle, library.NVML_CLOCK_SM),
        "ecc": lambda: library.nvmlDeviceGetEccMode(handle)[0],
        "mig": lambda: library.nvmlDeviceGetMigMode(handle)[0],
        "persistence": lambda: library.nvmlDeviceGetPersistenceMode(handle),
        # In a container this process has another id there, and is counted among the others.
        "other_processes": lambda: sum(
            process.pid != os.getpid()
            for process in library.nvmlDeviceGetComputeRunningProcesses(handle)
        ),
    }
    facts = {}
    for name, answer in questions.items():
        with suppress(library.NVMLError):
            facts[name] = int(answer())
    return facts


class Throttling:
    """Counters of one CUDA device; they stand still where NVML is not to be had."""

    def __init__(self, index: int) -> None:
        self._fields = counter_fields(driver_version())
        self._nvml: Any = None
        with suppress(Exception):  # as above
            self._handle = handle_of(index)
            nvml().nvmlDeviceGetFieldValues(self._handle, self._fields)
            self._nvml = nvml()

    def slowed_ns(self) -> dict[int, int]:
        """Return the nanoseconds for which each cause has slowed the device."""
        values = []
        if self._nvml is not None:
            with suppress(self._nvml.NVMLError):  # once in a while: no reason to lose a block
                values = self._nvml.nvmlDeviceGetFieldValues(self._handle, self._fields)
        return {value.fieldId: int(value.value.ullVal) for value in values if not value.nvmlReturn}

    def slowed_since(self, before: dict[int, int], seconds: float) -> bool:
        """Return whether a cause has slowed the device for a good part of these seconds."""
        limit_ns = THROTTLED_SHARE * seconds * 1e9
        return any(ns - before.get(field, ns) > limit_ns for field, ns in self.slowed_ns().items())
