"""Throttling of a GPU's clock, as NVML counts it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch

POLICIES = (74, 75)
"""Fields of nvmlDeviceGetFieldValues (nvml.h): nanoseconds for which a GPU ran below its clock, by
NVML_PERF_POLICY_POWER and _THERMAL."""
FIRST_REASON = {(580, 82): 269, (575, 0): 251}
"""First of three fields, NVML_FI_DEV_CLOCKS_EVENT_REASON_* (software thermal, hardware thermal,
power brake), from that driver on: renumbered between nvidia-ml-py 13.580.65 and 13.580.82. To other
drivers the number is a setting of power smoothing."""
THROTTLED_SHARE = 0.02
"""Share of a block's time by which a counter has grown in a throttled block."""


def counter_fields(driver: str) -> list[int]:
    """The fields that count throttled nanoseconds in a driver of that version (``580.95.05``)."""
    numbers = tuple(int(part) for part in driver.split(".")[:2] if part.isdigit())
    for since, first in FIRST_REASON.items():
        if numbers >= since:
            return [*POLICIES, first, first + 1, first + 2]
    return list(POLICIES)


def driver_version() -> str:
    """The NVIDIA driver's version; empty where NVML is not to be had."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except Exception:  # its absence takes many forms and is never fatal
        return ""


class Throttling:
    """Counters of one CUDA device; they stand still where NVML is not to be had."""

    def __init__(self, index: int) -> None:
        self._fields = counter_fields(driver_version())
        self._nvml: Any = None
        with suppress(Exception):  # as above
            import pynvml

            self._handle = _handle_of(pynvml, index)
            pynvml.nvmlDeviceGetFieldValues(self._handle, self._fields)
            self._nvml = pynvml

    def slowed_ns(self) -> dict[int, int]:
        """Nanoseconds for which each cause has slowed the device, since the driver was loaded."""
        if self._nvml is None:
            return {}
        values = self._nvml.nvmlDeviceGetFieldValues(self._handle, self._fields)
        return {value.fieldId: int(value.value.ullVal) for value in values if not value.nvmlReturn}

    def slowed_since(self, before: dict[int, int], seconds: float) -> bool:
        """Tell whether a cause has slowed the device for a good part of these seconds."""
        limit_ns = THROTTLED_SHARE * seconds * 1e9
        return any(ns - before.get(field, ns) > limit_ns for field, ns in self.slowed_ns().items())


def _handle_of(pynvml: Any, index: int) -> Any:
    """NVML's handle of a CUDA device. NVML counts all GPUs, CUDA the visible ones: the UUID joins
    them. torch gives it without the prefix that marks a GPU or a MIG slice of one."""
    uuid = str(torch.cuda.get_device_properties(index).uuid)
    try:
        return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode())
    except pynvml.NVMLError:
        return pynvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}".encode())
