"""What NVML tells of a GPU beside its timings. Read only: :mod:`.clocks` changes any."""

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
        self.nvml: Any = None
        self.handle: Any = None
        try:
            import pynvml
            import torch

            pynvml.nvmlInit()
            # NVML counts all GPUs, CUDA only the visible ones: the UUID joins the two.
            uuid = str(torch.cuda.get_device_properties(index).uuid)
            prefixed = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
            self.handle = pynvml.nvmlDeviceGetHandleByUUID(prefixed.encode())
            self.nvml = pynvml
        except Exception as error:  # NVML's absence takes many forms and is never fatal
            self.why_not = f"{type(error).__name__}: {error}"

    def driver(self) -> str | None:
        return self._read("nvmlSystemGetDriverVersion", needs_handle=False)

    def sm_clock_mhz(self) -> int | None:
        if self.handle is None:
            return None
        return self._read("nvmlDeviceGetClockInfo", self.nvml.NVML_CLOCK_SM)

    def reading(self) -> dict[str, Any]:
        """Memory clock, temperature and power now, by the names of a sample's fields."""
        if self.handle is None:
            return {}
        nvml = self.nvml
        milliwatts = self._read("nvmlDeviceGetPowerUsage")
        return {
            "mem_clock_mhz": self._read("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
            "temperature_c": self._read("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
            "power_w": None if milliwatts is None else milliwatts / 1e3,
        }

    def throttle_reason(self) -> str:
        bits = self._read("nvmlDeviceGetCurrentClocksThrottleReasons") or 0
        return ", ".join(name for bit, name in SLOWED_BY.items() if bits & bit)

    def _read(self, function: str, *arguments: Any, needs_handle: bool = True) -> Any:
        if self.handle is None:
            return None
        first = (self.handle,) if needs_handle else ()
        try:
            value = getattr(self.nvml, function)(*first, *arguments)
        except self.nvml.NVMLError as error:
            self.why_not = str(error)
            return None
        return value.decode() if isinstance(value, bytes) else value
