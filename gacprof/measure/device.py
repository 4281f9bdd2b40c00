"""The protocol between the sweep engine and whatever it measures on.

The engine never asks what a device is. A CPU, a CUDA GPU and a recording of earlier samples
all satisfy :class:`Device`; tests pass the recording.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gacprof.errors import MeasurementError
from gacprof.points import Environment, Point


class Work(Protocol):
    """One prepared point: operands allocated, ready to be timed. A context of one visit.

    It may also have ``reading() -> dict``: memory clock, temperature and power right after
    timing, by the names that :class:`~gacprof.points.Sample` gives them.
    """

    def warm_up(self) -> float:
        """Run untimed until the first-call costs are paid; return one call's rough time (µs)."""
        ...

    def time(self, repeats: int) -> list[float]:
        """Time ``repeats`` calls one by one, in microseconds each."""
        ...

    def kernels(self) -> Sequence[str]:
        """Names of the kernels one call launches, in order; empty where they cannot be told."""
        ...

    def clock_mhz(self) -> int | None:
        """The processor's clock right after timing, where it can be read."""
        ...

    def remark(self) -> str:
        """What disturbed the timings without spoiling them; empty if nothing did."""
        ...

    def throttled(self) -> str:
        """Why the device ran below its clock since the last call; empty if it did not."""
        ...


class Device(Protocol):
    """What a sweep needs. A device whose context an error can spoil for good also has
    ``usable() -> bool``, asked after a failure."""

    @property
    def timer(self) -> str:
        """How time is taken: ``cpu-monotonic``, ``kineto``, ``cuda-events``, ``recorded``."""
        ...

    @property
    def environment(self) -> Environment: ...

    def prepare(self, point: Point) -> Work:
        """Allocate a point's operands. Raises :class:`MeasurementError` with the reason."""
        ...

    def burn_in(self) -> None:
        """Keep the device busy once, until its clock has settled."""
        ...


def open_device(name: str | None = None, timer: str = "auto") -> Device:
    """``cpu``, ``cuda``, ``cuda:1``; by default the first GPU, else the CPU.

    ``timer`` chooses among a GPU's: ``auto``, ``kineto``, ``cuda-events``.
    Raises :class:`MeasurementError` for a device that is not there.
    """
    import torch

    if name is None:
        name = "cuda:0" if torch.cuda.is_available() else "cpu"
    kind, _, index = name.partition(":")
    if kind == "cpu" and not index:
        from gacprof.measure.cpu import CpuDevice

        return CpuDevice()
    if kind == "cuda" and (not index or index.isdigit()):
        from gacprof.measure.cuda import CudaDevice

        return CudaDevice(int(index or 0), timer)
    raise MeasurementError(f"unknown device '{name}': use 'cpu', 'cuda' or 'cuda:N'")
