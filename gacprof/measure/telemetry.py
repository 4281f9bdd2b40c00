"""What NVML tells of a GPU beside its timings. Read only: clocks are never changed here."""

from __future__ import annotations

from typing import Any

SLOWED_BY = {
    0x0000000000000004: "software power cap",
    0x0000000000000008: "hardware slowdown",
    0x0000000000000020: "software thermal slowdown",
    0x0000000000000040: "hardware thermal slowdown",
    0x0000000000000080: "hardware power brake",
}
"""Bits of nvmlDeviceGetCurrentClocksThrottleReasons (nvml.h) that mean a forced slowdown.

Idle (0x1), application clocks (0x2) and sync boost (0x10) are no faults of the moment.
"""


class Telemetry:
    """NVML for one CUDA device; every reading is None or empty where NVML is not to be had."""

    def __init__(self, index: int) -> None:
        self.why_not = ""
        self._handle: Any = None
        try:
            import pynvml
            import torch

            pynvml.nvmlInit()
            # NVML counts all GPUs, CUDA only the visible ones: the UUID joins the two.
            uuid = str(torch.cuda.get_device_properties(index).uuid)
            prefixed = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(prefixed.encode())
            self._nvml = pynvml
        except Exception as error:  # NVML's absence takes many forms and is never fatal
            self.why_not = f"{type(error).__name__}: {error}"

    def driver(self) -> str | None:
        return self._read("nvmlSystemGetDriverVersion", needs_handle=False)

    def sm_clock_mhz(self) -> int | None:
        if self._handle is None:
            return None
        return self._read("nvmlDeviceGetClockInfo", self._nvml.NVML_CLOCK_SM)

    def throttle_reason(self) -> str:
        bits = self._read("nvmlDeviceGetCurrentClocksThrottleReasons") or 0
        return ", ".join(name for bit, name in SLOWED_BY.items() if bits & bit)

    def _read(self, function: str, *arguments: Any, needs_handle: bool = True) -> Any:
        if self._handle is None:
            return None
        first = (self._handle,) if needs_handle else ()
        try:
            value = getattr(self._nvml, function)(*first, *arguments)
        except self._nvml.NVMLError as error:
            self.why_not = str(error)
            return None
        return value.decode() if isinstance(value, bytes) else value
