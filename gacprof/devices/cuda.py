"""A CUDA GPU as a device: a graph for each point, blocks that launch each graph once and wait once.

Points are warmed up first: their rough times decide how many calls the graphs of an axis hold. One
trace of all points names kernels before any capture, since tracers and graphs get in each other's
way. The same steps run on a virtual GPU, whose kernels are real and whose times are nan."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from gacprof import operators
from gacprof.core.errors import MeasurementError
from gacprof.core.points import Point
from gacprof.devices.cuda_graph import TimedGraph, kernel_names, rough_us
from gacprof.devices.device import UNKNOWN, Current, first_line
from gacprof.devices.environment import Throttling, read_environment
from gacprof.devices.memory import Arenas, is_cold, weight_bytes
from gacprof.devices.threads import no_collection
from gacprof.operators.operands import set_precision

L2_FACTOR = 2
"""L2 caches read between uses of cold weights: fewer reorder results (pytorch/pytorch#192159)."""
MAX_COLD_SHARE = 0.25
"""Limit of an axis's cold weights, as a share of all memory."""
WARM_UP_CALLS = 3
TARGET_US, LONGEST_US, MAX_CALLS = 150.0, 1_000.0, 64
"""Length of a graph's calls together: events step by half a microsecond, a third of a per cent of
the first. An axis's longest graph takes the second at most, or a single call."""
HEAVY_INTENSITY = 100.0
"""Operations a byte, about half the ridge of the chips in ``datasheet.toml``: they may reach the
power cap, and what ran before decides the clock. As long a rest follows."""
PATIENCE = 8
"""Throttled blocks in a row that count as disturbed; after them a session's clock is taken to be
held down for good, and its times count again: all sizes of a block share it."""
BURN_IN_S = 0.5


class CudaDevice:
    """One GPU and one stream that all work is on. Needs torch 2.9 or later, whose graphs record
    timing events. Raises :class:`MeasurementError` where there is no such GPU."""

    def __init__(self, index: int = 0) -> None:
        if not torch.cuda.is_available() or index >= torch.cuda.device_count():
            raise MeasurementError(
                f"there is no cuda:{index}: torch {torch.__version__} sees "
                f"{torch.cuda.device_count()} CUDA devices; use the device 'cpu'"
            )
        self.index = index
        self.torch_device = torch.device("cuda", index)
        self.environment = read_environment(f"cuda:{index}")
        self.virtual = self.environment.kind == "virtual"
        self.current = Current()
        self.memory_bytes = int(self.environment.facts["memory_bytes"])
        self.arenas = Arenas(self.torch_device, self.memory_bytes)
        self.throttling = Throttling(index)
        self.graphs: list[torch.cuda.CUDAGraph] = []
        self.graph_pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(index)
        self.cold_bytes = L2_FACTOR * int(self.environment.facts["l2_bytes"])
        self._other_memory = torch.ones(self.cold_bytes // 4, device=self.torch_device)
        if not self.virtual:
            self._burn_in()

    def prepare(self, points: Sequence[Point]) -> CudaSession:
        return CudaSession(self, points)

    @contextmanager
    def active(self) -> Iterator[None]:
        """On this device and stream, without autograd and garbage collection; torch's TF32 switch
        is left as it was."""
        matmul = torch.backends.cuda.matmul
        tf32 = matmul.allow_tf32
        try:
            with torch.cuda.stream(self._stream), torch.inference_mode(), no_collection():
                yield
        finally:
            matmul.allow_tf32 = tf32

    def flush(self) -> None:
        """Fill the L2 cache with other memory, by reading: lines that were written would have to be
        written back while the next call runs."""
        self._other_memory.sum()

    def check(self) -> None:
        """Raise where the CUDA context is spoilt: an illegal access or a failed assertion leaves it
        unusable for the rest of the process, a refused call or a lack of memory does not."""
        torch.cuda.synchronize(self.index)
        self._other_memory[:1].add_(0)
        torch.cuda.synchronize(self.index)

    def _burn_in(self) -> None:
        """Work, until the clock has climbed."""
        x = torch.randn(4096, 4096, device=self.torch_device).half()
        until = time.monotonic() + BURN_IN_S
        while time.monotonic() < until:
            for _ in range(20):
                x @ x
            torch.cuda.synchronize(self.index)

    def close(self) -> None:
        """Give back graphs and operands; no session may be used afterwards."""
        self.graphs.clear()
        self.arenas = Arenas(self.torch_device, self.memory_bytes)
        torch.cuda.empty_cache()


class CudaSession:
    """The points of an axis, captured in graphs of equally many calls each."""

    def __init__(self, device: CudaDevice, points: Sequence[Point]) -> None:
        self._device, self._points = device, points
        self.failures: dict[int, str] = {}
        self._calls: dict[int, Callable[..., Any]] = {}
        self._rough_us: dict[int, float] = {}
        self._names: dict[int, tuple[str, ...]] = {}
        self._graphs: dict[tuple[int, int], TimedGraph] = {}
        self._throttled_blocks = 0
        with device.active():
            self._reserve(device.cold_bytes)
            for index in range(len(points)):
                self._attempt(index, self._warm_up)
            weights = 1 + max((weight_bytes(points[index]) for index in self._calls), default=0)
            self._calls_per_graph = self._choose_run_length(weights)
            self._reserve(max(device.cold_bytes, self._calls_per_graph * weights))
            self._trace()
            for index in range(len(points)):
                self._attempt(index, partial(self._capture, occurrence=0))
        device.current.value = UNKNOWN

    def _reserve(self, reuse_bytes: int) -> None:
        """Memory for all points, the largest first: a point that does not fit fails."""
        arenas, points = self._device.arenas, self._points
        sizes = [operators.get(point.operator).bytes_moved(point) for point in points]
        for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
            self._attempt(index, lambda index: arenas.reserve(points[index], reuse_bytes))

    def _attempt(self, index: int, step: Callable[[int], None]) -> None:
        """Take a step of preparing a point; where it raises, the point is a failure. Raises where
        the device is unusable afterwards."""
        if index in self.failures:
            return
        self._device.current.value = index
        try:
            set_precision(self._points[index])
            step(index)
        except torch.cuda.OutOfMemoryError:
            self.failures[index] = "out of GPU memory"
            torch.cuda.empty_cache()
        except Exception as error:  # an operator may raise anything
            self.failures[index] = first_line(error)
            self._device.check()

    def _warm_up(self, index: int) -> None:
        """First calls of a point and its rough time. One that waits for the device is refused: no
        graph can hold it, and a capture that fails spoils torch's allocator."""
        point = self._points[index]
        call = operators.get(point.operator).call(point, self._device.torch_device)
        bound = self._device.arenas.bind(point, call, replicate=False)
        for _ in range(WARM_UP_CALLS):
            begin = time.perf_counter()
            bound()
            enqueue_us = (time.perf_counter() - begin) * 1e6
            torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            bound()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        self._calls[index] = call
        self._rough_us[index] = rough_us(bound, enqueue_us)

    def _choose_run_length(self, max_weight_bytes: int) -> int:
        """Calls that each graph holds: the same for all, since its events and first call add a
        microsecond or two. As many as the shorter calls need, no more than the longest allow."""
        times_us = sorted(self._rough_us.values())
        if not times_us or self._device.virtual:
            return 1
        limits = [TARGET_US / times_us[len(times_us) // 4], LONGEST_US / times_us[-1], MAX_CALLS]
        if is_cold(self._points[0]):
            limits.append(MAX_COLD_SHARE * self._device.memory_bytes / max_weight_bytes)
        return max(1, round(min(limits)))

    def _trace(self) -> None:
        def call_once(index: int) -> None:
            set_precision(self._points[index])
            self._device.arenas.bind(self._points[index], self._calls[index], replicate=False)()

        indices = [index for index in self._calls if index not in self.failures]
        names = kernel_names([partial(call_once, index) for index in indices])
        self._names = dict(zip(indices, names, strict=True))

    def _capture(self, index: int, occurrence: int) -> None:
        """The graph of the point's n-th call in a block, launched once, which uploads it."""
        device, point = self._device, self._points[index]
        replicate = occurrence % 2 == 1
        bind = partial(device.arenas.bind, point, self._calls[index], replicate=replicate)
        calls = [bind() for _ in range(self._calls_per_graph)]
        operator = operators.get(point.operator)
        heavy = operator.flops(point) > HEAVY_INTENSITY * operator.bytes_moved(point)
        rest_us = self._rough_us[index] * len(calls) if heavy else 0.0
        before = device.flush if is_cold(point) else calls[0]
        graph = TimedGraph(calls, before, rest_us, device.graphs, device.graph_pool)
        graph.launch()
        torch.cuda.synchronize()
        self._graphs[index, occurrence] = graph

    def time_block(self, order: Sequence[int]) -> list[float]:
        """One launch of each point's graph, and an unrecorded one of the first before them. Raises
        :class:`MeasurementError` where the device fails: which call did it is not known."""
        keys = [(index, order[:place].count(index)) for place, index in enumerate(order)]
        with self._device.active():
            for index, occurrence in keys:
                if (index, occurrence) not in self._graphs:
                    self._attempt(index, partial(self._capture, occurrence=occurrence))
            self._device.current.value = UNKNOWN
            callable_keys = [key for key in keys if key[0] not in self.failures]
            throttled = self._launch(callable_keys)
            times_us = [math.nan] * len(order)
            for place, key in enumerate(keys):
                if key in callable_keys and not throttled and not self._device.virtual:
                    times_us[place] = self._graphs[key].call_us()
        return times_us

    def _launch(self, keys: Sequence[tuple[int, int]]) -> bool:
        """Launch the graphs; true where the clock was held down meanwhile, for a while only."""
        throttling = self._device.throttling
        slowed, begin = throttling.slowed_ns(), time.monotonic()
        try:
            for key in [*keys[:1], *keys]:
                self._graphs[key].launch()
            torch.cuda.synchronize()
        except RuntimeError as error:
            raise MeasurementError(f"the GPU failed in a block: {first_line(error)}") from None
        if not throttling.slowed_since(slowed, time.monotonic() - begin):
            self._throttled_blocks = 0
            return False
        self._throttled_blocks += 1
        return self._throttled_blocks <= PATIENCE

    def kernels(self, index: int) -> tuple[str, ...]:
        return self._names.get(index, ())

    def close(self) -> None:
        """Forget the graphs, which stay the device's until it is closed."""
        self._graphs.clear()
        self._calls.clear()
