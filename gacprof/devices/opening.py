"""Devices by name."""

from __future__ import annotations

from gacprof.core.errors import MeasurementError
from gacprof.devices.device import Device


def device_name(name: str = "auto") -> str:
    """``cpu`` or ``cuda:0`` and so on; ``auto`` is the first GPU, else the CPU. Raises
    :class:`MeasurementError` for another name."""
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, index = name.partition(":")
    if kind == "cuda" and (index or "0").isdigit():
        return f"cuda:{int(index or 0)}"
    if name != "cpu":
        raise MeasurementError(f"unknown device '{name}': use 'cpu', 'cuda' or 'cuda:1'")
    return name


def open_device(name: str = "auto", isolated: bool = False) -> Device:
    """Open ``cpu``, ``cuda``, ``cuda:1``, or ``auto``: the first GPU, else the CPU. ``isolated`` is
    in a worker process, which is replaced when a point kills it. Raises :class:`MeasurementError`
    for a device that is not there."""
    name = device_name(name)
    if isolated:
        from gacprof.devices.worker import IsolatedDevice

        return IsolatedDevice(name)
    if name == "cpu":
        from gacprof.devices.cpu import CpuDevice

        return CpuDevice()
    from gacprof.devices.cuda import CudaDevice

    return CudaDevice(int(name.partition(":")[2]))
