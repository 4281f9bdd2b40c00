"""The protocol of a device: prepare the points of axes, then time them in the order asked for."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gacprof.core.errors import MeasurementError
from gacprof.core.points import Environment, KernelRun, Point

UNKNOWN = -1  # index of no point
UNTRACED = "GACPROF_UNTRACED"  # environment variable: a tracer has crashed a process like this one


@dataclass(frozen=True)
class BlockTimes:
    """The times of a block: microseconds of a call of each point, in the order asked for."""

    times_us: Sequence[float]  # nan: failed, lost its core, throttled, or on a virtual GPU
    slot_us: float  # how long one place of the block took with all that is done around its call
    conditions: Mapping[str, float] = field(default_factory=dict)


class Session(Protocol):
    """Points ready to be called in any order, by their index in the sequence that was prepared."""

    failures: dict[int, str]  # one line for each point that cannot be called; may grow in a block
    kernels: dict[int, tuple[KernelRun, ...]]  # that one call launches, in order, where known

    def time_block(self, order: Sequence[int]) -> BlockTimes:
        """Time a call of each of these points, in this order. An index that stands twice is an A/A
        replicate: its second call has its operands at another address."""


class Device(Protocol):
    """A device to measure on. Sessions may be open side by side; blocks run one after another."""

    environment: Environment  # the device and the software that drives it

    def prepare(self, axes: Sequence[Sequence[Point]]) -> Sequence[Session]:
        """Prepare the points of each axis, a session for each."""

    def close(self) -> None:
        """Release the device and its sessions."""


def first_line(error: BaseException) -> str:
    """Return an error in one line: its message, or its type where there is none."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def device_name(name: str = "auto") -> str:
    """Return ``cpu``, ``cuda:0`` and so on; for ``auto`` the first GPU, else the CPU."""
    import torch

    first = "cuda:0" if torch.cuda.is_available() else "cpu"
    name = {"auto": first, "cuda": "cuda:0"}.get(name, name)
    if not re.fullmatch(r"cpu|cuda:\d+", name):
        raise MeasurementError(f"unknown device '{name}': use 'cpu', 'cuda' or 'cuda:1'")
    return name


def open_device(name: str = "auto", isolated: bool = False) -> Device:
    """Open a device by its name (:func:`device_name`); ``isolated`` in a worker process, which is
    replaced when a point kills it. Raises :class:`MeasurementError` for one that is not there."""
    name = device_name(name)
    if isolated:
        from gacprof.devices.worker import IsolatedDevice

        return IsolatedDevice(name)
    if name == "cpu":
        from gacprof.devices.cpu import CpuDevice

        return CpuDevice()
    from gacprof.devices.cuda import CudaDevice

    return CudaDevice(int(name.partition(":")[2]))
