"""Devices by name: what there is, and how one is opened."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gacprof.core.errors import MeasurementError
from gacprof.core.plugins import brought, instance, naming
from gacprof.devices.cpu import CpuDevice
from gacprof.devices.cuda import CudaDevice
from gacprof.devices.device import Device


def device_name(name: str | None = None) -> str:
    """That name, or the default: the first GPU, else the CPU."""
    if name is not None:
        return name
    import torch

    return "cuda:0" if torch.cuda.is_available() else "cpu"


def device_kind(name: str | None = None) -> str:
    """``cpu`` or ``cuda``, by which suites choose their curves; another package's device is of a
    kind of its own unless the function that opens it has a ``kind``."""
    kind = device_name(name).partition(":")[0]
    if kind in ("cpu", "cuda"):
        return kind
    kinds = brought("devices", lambda opener: str(getattr(opener, "kind", "")))
    return kinds.get(kind) or kind


def local_gpus() -> list[str]:
    """``cuda:0`` … as torch sees them. Raises :class:`MeasurementError` where there are none."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        raise MeasurementError(
            "--device all sweeps every CUDA GPU of this machine, and there is none: "
            "use --device cpu, or see 'gacprof doctor'"
        )
    return [f"cuda:{index}" for index in range(count)]


def present_device(name: str | None = None) -> str:
    """:func:`device_name`. Raises :class:`MeasurementError` for a device that is not there."""
    found = device_name(name)
    open_device(found).close()
    return found


def open_device(name: str | None = None, timer: str = "auto") -> Device:
    """``cpu``, ``cuda``, ``cuda:1``; by default the first GPU, else the CPU. Another package's is
    opened by the function that its entry point names, with what follows the colon.

    ``timer`` chooses among a GPU's: ``cuda-graph``, ``cuda-events``, or ``auto``: graphs, and
    events for calls that no graph can capture.
    Raises :class:`MeasurementError` for a device that is not there.
    """
    name = device_name(name)
    kind, _, index = name.partition(":")
    if kind == "cpu" and not index:
        return CpuDevice()
    if kind == "cuda" and (not index or index.isdigit()):
        return CudaDevice(int(index or 0), timer)
    openers: dict[str, Callable[[str], Any]] = brought("devices", lambda opener: opener)
    if kind in openers:
        with naming(f"the device '{name}' cannot be opened"):
            made: Device = instance(openers[kind](index), Device)
            return made
    others = "".join(f", '{one}'" for one in openers)
    raise MeasurementError(f"unknown device '{name}': use 'cpu', 'cuda' or 'cuda:N'{others}")
