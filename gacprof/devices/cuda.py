"""A CUDA GPU as a device to sweep. What a curve's slots do on it is :mod:`.cuda_session`'s."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gacprof.core.errors import MeasurementError
from gacprof.core.points import Environment, Point
from gacprof.devices.cuda_graph import EVENTS, GRAPH
from gacprof.devices.cuda_session import CudaSession, Key
from gacprof.devices.cuda_slot import Captured
from gacprof.devices.device import Device, Session, Slot
from gacprof.devices.environment import cuda_environment
from gacprof.devices.kineto import Tracer, mark
from gacprof.devices.memory import Arenas
from gacprof.devices.nvml import Telemetry

if TYPE_CHECKING:
    import torch

Curve = tuple[Hashable, ...]
"""All that the points of a curve have in common."""

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


class CudaDevice(Device):
    """``timer`` is ``cuda-graph``, ``cuda-events``, or ``auto``: graphs, and events for slots that
    no graph can capture, as :meth:`Session.remarks` reports.

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
        self.names: dict[Point, tuple[str, ...]] = {}
        """Of the kernels of points, traced here or by another process."""
        self.captured: dict[Key, Captured] = {}
        """What sessions have captured, closed ones too."""
        self.graphs: list[torch.cuda.CUDAGraph] = []
        self.nodes = 0
        """Of all these graphs."""
        self._calls: dict[Curve, list[int]] = {}
        """Of the runs captured, by curve."""
        self.open_sessions = 0

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

        x = torch.zeros(1, device=self.torch_device)
        return Tracer(launch=lambda: x.add_(1), mark=mark, finish=self.synchronise)

    @cached_property
    def pool(self) -> Any:
        """Memory of all graphs: they are replayed one after another, so that they may share it
        (pytorch/pytorch#166975)."""
        import torch

        return torch.cuda.graph_pool_handle()

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

    def session(self, slots: Sequence[Slot], reuse_bytes: int = 0) -> Session:
        return CudaSession(self, slots, reuse_bytes)

    def learn(self, kernels: Mapping[Point, tuple[str, ...]]) -> None:
        self.names.update(kernels)

    def open_with(self, keys: Mapping[int, Key]) -> dict[int, Captured]:
        """What is captured already of a new session's slots. With none of it, and no other session
        open, all that was captured is forgotten."""
        found = {i: self.captured[key] for i, key in keys.items() if key in self.captured}
        if not found and not self.open_sessions:
            self.forget()
        self.open_sessions += 1
        return found

    def keep(self, key: Key, made: Captured) -> None:
        self.captured[key] = made
        for curve in _curves(key[0].point):
            self._calls.setdefault(curve, []).append(made.calls)

    def calls_on_curve(self, slots: Sequence[Slot]) -> list[int]:
        """How many calls the runs hold that were captured of these slots' curve, whichever of
        their dims it is over: of most runs, and of more than one, which is another curve's."""
        shared = (_curves(slot.point) for slot in slots)
        curves = set.intersection(*map(set, shared)) if slots else set()
        found = [calls for curve in curves if len(calls := self._calls.get(curve, [])) > 1]
        return max(found, key=len, default=[])

    def forget(self) -> None:
        """Give back all graphs at once: the first that goes away may take what the others use."""
        import torch

        self.captured.clear()
        self._calls.clear()
        for graph in self.graphs:
            graph.reset()
        self.graphs.clear()
        self.nodes = 0
        self.__dict__.pop("pool", None)
        torch.cuda.empty_cache()

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
        """Give back graphs and the memory of all operands."""
        for held in ("arenas", "tracer", "_other_memory"):
            self.__dict__.pop(held, None)
        self.forget()


def _curves(point: Point) -> list[Curve]:
    """The curves that a point lies on: one over each of its dims, all else equal."""
    what = (point.operator, point.dtype, point.flags)
    return [(*what, name, tuple(d for d in point.dims if d[0] != name)) for name, _ in point.dims]
