"""A CUDA GPU as this process uses it: one stream, its memory, tracer, telemetry and graphs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING

from gacprof.core.errors import MeasurementError
from gacprof.core.points import Environment
from gacprof.devices.cuda_graph import EVENTS, GRAPH, Graphs
from gacprof.devices.device import Device
from gacprof.devices.environment import cuda_environment
from gacprof.devices.kineto import Tracer
from gacprof.devices.memory import Arenas
from gacprof.devices.nvml import Telemetry

if TYPE_CHECKING:
    import torch

AUTO = "auto"
L2_FACTOR = 2
"""Times the L2 cache: what is read between two uses of the same cold weights. Less of it reorders
results (pytorch/pytorch#192159)."""
ASSUMED_L2_BYTES = 128 << 20
MEMORY_SHARE = 0.9
"""Of the memory that is free, at most this for one point's operands."""
COLD_SHARE = 0.25
"""Of all memory, at most this for each dtype's cold weights."""
BURN_IN_S = 0.5


class GpuDevice(Device):
    """The device without its sessions. ``timer`` is ``cuda-graph``, ``cuda-events``, or ``auto``:
    graphs, and events for slots that no graph can capture, as :meth:`Session.remarks` reports.

    Raises :class:`MeasurementError` for another timer, and where there is no such GPU.
    """

    def __init__(self, index: int = 0, timer: str = AUTO) -> None:
        import torch

        if timer not in (AUTO, GRAPH, EVENTS):
            raise MeasurementError(f"unknown timer '{timer}': use {AUTO}, {GRAPH} or {EVENTS}")
        if not torch.cuda.is_available():
            raise MeasurementError(
                "no CUDA device is usable here (torch.cuda.is_available() is false): "
                "use --device cpu, or see 'gacprof doctor'"
            )
        if index >= torch.cuda.device_count():
            raise MeasurementError(
                f"there is no cuda:{index} here; the last is cuda:{torch.cuda.device_count() - 1}"
            )
        self.index = index
        self.torch_device = torch.device("cuda", index)
        self.telemetry = Telemetry(index)
        self.timer = EVENTS if timer == EVENTS else GRAPH
        self.falls_back = timer == AUTO
        self.graphs = Graphs(index)

    @cached_property
    def environment(self) -> Environment:  # type: ignore[override]
        return cuda_environment(self.index, self.telemetry.driver(), self.telemetry.fixed())

    @cached_property
    def arenas(self) -> Arenas:
        return Arenas(self.torch_device)

    @cached_property
    def tracer(self) -> Tracer:
        """Made on first use: opening the device alone attaches no CUPTI to it."""
        import torch

        return Tracer(torch.zeros(1, device=self.torch_device), self.synchronise)

    @cached_property
    def _stream(self) -> torch.cuda.Stream:
        import torch

        return torch.cuda.Stream(self.index)

    @property
    def cold_bytes(self) -> int:
        """What must be read between two uses of cold weights."""
        return L2_FACTOR * (self.environment.facts.get("l2_bytes") or ASSUMED_L2_BYTES)

    @property
    def most_cold_bytes(self) -> int:
        """What the arena of one dtype's cold weights may hold."""
        return int(COLD_SHARE * self.environment.facts["memory_bytes"])

    @cached_property
    def _other_memory(self) -> torch.Tensor:
        import torch

        return torch.ones(self.cold_bytes // 4, dtype=torch.float32, device=self.torch_device)

    def flush(self) -> None:
        """Fill the L2 cache with other memory, by reading: lines that were written would have to
        be written back while the next call runs."""
        self._other_memory.sum()

    @contextmanager
    def active(self) -> Iterator[None]:
        """On this device, on the one stream that all its work is on, without autograd. Leaves the
        process's TF32 switch as it was."""
        import torch

        matmul = torch.backends.cuda.matmul
        before = matmul.allow_tf32
        try:
            with (
                torch.cuda.device(self.index),
                torch.cuda.stream(self._stream),
                torch.inference_mode(),
            ):
                yield
        finally:
            matmul.allow_tf32 = before

    def synchronise(self) -> None:
        import torch

        torch.cuda.synchronize(self.index)

    def check_memory(self, operand_bytes: int) -> None:
        """Refuse what cannot fit, counting what torch holds in reserve as free: it is reused."""
        import torch

        free, _ = torch.cuda.mem_get_info(self.index)
        reserve = torch.cuda.memory_reserved(self.index) - torch.cuda.memory_allocated(self.index)
        free += reserve
        if operand_bytes > MEMORY_SHARE * free:
            raise MeasurementError(
                f"the operands need {operand_bytes / 2**30:.1f} GiB, "
                f"the GPU has {free / 2**30:.1f} GiB free"
            )

    def usable(self) -> bool:
        """Whether the CUDA context still works. An illegal access or a failed assertion spoils
        it for the rest of the process; a refused call or a lack of memory does not."""
        import torch

        try:
            self.synchronise()
            torch.ones(1, device=self.torch_device).add_(1).item()
        except torch.cuda.OutOfMemoryError:
            return True
        except RuntimeError:
            return False
        return True

    def burn_in(self) -> None:
        """Long enough for the clock to climb and for NVML to show it."""
        import torch

        draw = torch.Generator(device=self.torch_device).manual_seed(0)
        x = torch.randn(4096, 4096, generator=draw, device=self.torch_device).half()
        until = time.monotonic() + BURN_IN_S
        while time.monotonic() < until:
            for _ in range(20):
                x @ x
            self.synchronise()

    def close(self) -> None:
        """Give back the memory of all operands."""
        for held in ("arenas", "tracer", "_other_memory"):
            self.__dict__.pop(held, None)
