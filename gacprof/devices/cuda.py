"""A CUDA GPU as a device: a graph for each point, blocks that launch each graph once and wait once.

One trace of all points of all axes names kernels before any capture, since tracers and graphs get
in each other's way. The same steps run on a virtual GPU, whose kernels are real and times nan.
"""

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import c_longlong
from dataclasses import replace
from functools import cached_property, partial
from itertools import cycle, islice
from statistics import median
from typing import Any

import torch

from gacprof import operators
from gacprof.core.errors import MeasurementError
from gacprof.core.points import KernelRun, Point
from gacprof.devices.cuda_graph import LEAD_IN_US, WARM_UP_CALLS, TimedGraph, rough_us
from gacprof.devices.device import UNKNOWN, BlockTimes, first_line
from gacprof.devices.environment import read_environment
from gacprof.devices.memory import Arenas, BoundCall, is_cold, weight_bytes
from gacprof.devices.nvml import Throttling
from gacprof.devices.threads import no_collection
from gacprof.devices.tracing import traced_kernels

L2_FACTOR = 2  # L2 sizes read between cold uses: fewer reorder results (pytorch/pytorch#192159)
MAX_COLD_SHARE = 0.25  # of all memory, for an axis's cold weights
TARGET_US = 150.0  # of a graph's calls together: an event's step is a third of a per cent of it
LONGEST_US = 1_000.0  # of an axis's longest graph, unless one call takes longer
MAX_CALLS = 64
# Operations a byte, half the ridge of the chips in gpus.toml: such calls may reach the power cap,
# where what ran before decides the clock. A rest as long as they took follows.
HEAVY_INTENSITY = 100.0
PATIENCE = 8  # throttled blocks in a row are left out; more mean that the clock stays down
BURN_IN_S = 0.5  # work at first, until the clock has climbed
BLOCK_WARM_UP_US = 8_000.0  # between blocks an idle GPU's clock falls (an H100's to 345 MHz)
MAX_WARM_UPS = 64  # graphs
METER_CYCLES = (100_000, 500_000)  # what starts and times a spin cancels in their difference
EMPTY_LAUNCHES = 21
DITHER_US = 1.0  # lead-ins differ by up to this, else an event's tick rounds all times alike


class CudaDevice:
    """One GPU and one stream that all work is on."""

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
        self.current = c_longlong(UNKNOWN)  # place of the point under way, for a worker's parent
        self.memory_bytes = int(self.environment.facts["memory_bytes"])
        self.arenas = Arenas(self.torch_device, self.memory_bytes)
        self.throttling = Throttling(index)
        self.prepared_points = 0
        self.graphs: list[torch.cuda.CUDAGraph] = []
        self.graph_pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(index)
        self.cold_bytes = L2_FACTOR * int(self.environment.facts["l2_bytes"])
        self.other_memory = torch.ones(self.cold_bytes // 4, device=self.torch_device)
        if not self.virtual:
            x = torch.randn(4096, 4096, device=self.torch_device).half()
            until = time.monotonic() + BURN_IN_S
            while time.monotonic() < until:
                for _ in range(20):
                    x @ x
                torch.cuda.synchronize(index)

    def prepare(self, axes: Sequence[Sequence[Point]]) -> list["CudaSession"]:
        """Prepare axes in steps that each take all of them: memory, calls, one trace, captures."""
        sessions = [CudaSession(self, points) for points in axes]
        steps: list[tuple[CudaSession, int]] = []
        for session in sessions:
            steps += [(session, index) for index in range(len(session.points))]
        with self.active():
            self.flush()  # its first call: later ones are captured
            # The largest points first: views keep the memory that an arena grows from.
            for session, index in sorted(steps, key=lambda step: -step[0].bytes_moved(step[1])):
                session.attempt(index, partial(session.reserve, reuse_bytes=self.cold_bytes))
            for session, index in steps:
                session.attempt(index, session.warm_up)
            for session in sessions:
                session.choose_run_length()
            self.current.value = UNKNOWN  # a tracer that crashes is no point's fault
            traced = [(s, i) for s, i in steps if i not in s.failures]
            kernels = traced_kernels([partial(s.call_once, i) for s, i in traced])
            for (session, index), runs in zip(traced, kernels, strict=True):
                if self.virtual:
                    runs = tuple(replace(run, us=math.nan) for run in runs)
                session.kernels[index] = runs
            for session, index in steps:
                session.attempt(index, partial(session.capture, occurrence=0))
        self.current.value = UNKNOWN
        return sessions

    @cached_property
    def clock_meter(self) -> list[TimedGraph]:
        """Spins of :data:`METER_CYCLES`, captured when first asked for: after the trace."""
        spins = [partial(torch.cuda._sleep, cycles) for cycles in METER_CYCLES]
        return [TimedGraph([spin], self.graphs, self.graph_pool) for spin in spins]

    def clock_mhz(self) -> float:
        """Return the SM clock at the meter's latest launch; a virtual GPU has none."""
        short, long = self.clock_meter
        spun_us = long.elapsed_us() - short.elapsed_us()
        return round((METER_CYCLES[1] - METER_CYCLES[0]) / spun_us, 1)

    @cached_property
    def constant_us(self) -> float:
        """Microseconds between two events with nothing in between, which every graph pays."""
        nothing = TimedGraph([], self.graphs, self.graph_pool)
        times_us = []
        for _ in range(EMPTY_LAUNCHES):
            nothing.launch()
            torch.cuda.synchronize()
            times_us.append(nothing.elapsed_us())
        return median(times_us)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Run the block on this device and stream, and leave torch's TF32 switch as it was."""
        tf32 = torch.backends.cuda.matmul.allow_tf32
        try:
            with torch.cuda.stream(self._stream), torch.inference_mode(), no_collection():
                yield
        finally:
            torch.backends.cuda.matmul.allow_tf32 = tf32

    def flush(self) -> None:
        """Fill the L2 cache with other memory."""
        self.other_memory.sum()  # a read: lines that were written go back while the next call runs

    def close(self) -> None:
        """Give back graphs and operands; no session may be used afterwards."""
        self.graphs.clear()
        self.arenas = Arenas(self.torch_device, self.memory_bytes)
        torch.cuda.empty_cache()


class CudaSession:
    """The points of an axis, captured in graphs of equally many calls each."""

    def __init__(self, device: CudaDevice, points: Sequence[Point]) -> None:
        self._device, self.points = device, points
        self._first_place = device.prepared_points
        device.prepared_points += len(points)
        self.failures: dict[int, str] = {}
        self._calls: dict[int, Callable[..., Any]] = {}
        self._calls_per_graph = 1
        self._rough_us: dict[int, float] = {}
        self.kernels: dict[int, tuple[KernelRun, ...]] = {}
        self._graphs: dict[tuple[int, int], TimedGraph] = {}
        self._dither = random.Random(self._first_place)
        self._throttled_blocks = 0

    def attempt(self, index: int, step: Callable[[int], None]) -> None:
        """Take a step of preparing a point, which is a failure where it raises."""
        if index in self.failures:
            return
        self._device.current.value = self._first_place + index
        try:
            step(index)
        except torch.cuda.OutOfMemoryError:
            self.failures[index] = "out of GPU memory"
            torch.cuda.empty_cache()
        except Exception as error:  # an operator may raise anything
            self.failures[index] = first_line(error)
            # Raises where an illegal access or a failed assertion has spoilt the CUDA context.
            torch.cuda.synchronize()
            self._device.other_memory[:1].add_(0)
            torch.cuda.synchronize()

    def bytes_moved(self, index: int) -> int:
        point = self.points[index]
        return operators.get(point.operator).bytes_moved(point)

    def reserve(self, index: int, reuse_bytes: int) -> None:
        self._device.arenas.reserve(self.points[index], reuse_bytes)

    def warm_up(self, index: int) -> None:
        """Make a point's first calls and time it roughly."""
        point = self.points[index]
        self._calls[index] = operators.get(point.operator).call(point, self._device.torch_device)
        bound = self._bound(index, replicate=False)
        for _ in range(WARM_UP_CALLS):
            begin = time.perf_counter()
            bound()
            enqueue_us = (time.perf_counter() - begin) * 1e6
            torch.cuda.synchronize()
        self._rough_us[index] = rough_us(bound, enqueue_us)

    def choose_run_length(self) -> None:
        """Choose how many calls a graph holds: as short ones need, as the longest allow."""
        times_us = sorted(self._rough_us.values())
        if not times_us or self._device.virtual:
            return
        # One number for all: the first call of a graph costs more than the others.
        limits = [TARGET_US / times_us[len(times_us) // 4], LONGEST_US / times_us[-1], MAX_CALLS]
        weights = 1 + max(weight_bytes(self.points[index]) for index in self._rough_us)
        if is_cold(self.points[0]):
            limits.append(MAX_COLD_SHARE * self._device.memory_bytes / weights)
        self._calls_per_graph = max(1, round(min(limits)))
        reuse_bytes = max(self._device.cold_bytes, self._calls_per_graph * weights)
        for index in sorted(self._rough_us, key=self.bytes_moved, reverse=True):
            self.attempt(index, partial(self.reserve, reuse_bytes=reuse_bytes))

    def call_once(self, index: int) -> None:
        self._bound(index, replicate=False)()

    def _bound(self, index: int, replicate: bool) -> BoundCall:
        arenas, point = self._device.arenas, self.points[index]
        # The older of torch's switches: code that reads it raises where only newer ones were set.
        torch.backends.cuda.matmul.allow_tf32 = point.dtype == "tf32"
        return arenas.bind(point, self._calls[index], replicate=replicate)

    def capture(self, index: int, occurrence: int) -> None:
        """Capture the graph of the point's n-th call in a block."""
        device, point = self._device, self.points[index]
        replicate = occurrence % 2 == 1
        calls = [self._bound(index, replicate) for _ in range(self._calls_per_graph)]
        operator = operators.get(point.operator)
        heavy = operator.flops(point) > HEAVY_INTENSITY * operator.bytes_moved(point)
        graph = TimedGraph(
            calls,
            device.graphs,
            device.graph_pool,
            before=device.flush if is_cold(point) else calls[0],
            lead_in_us=LEAD_IN_US + DITHER_US * self._dither.random(),
            rest_us=self._rough_us[index] * len(calls) if heavy else 0.0,
        )
        graph.launch()  # uploads it
        torch.cuda.synchronize()
        self._graphs[index, occurrence] = graph

    def time_block(self, order: Sequence[int]) -> BlockTimes:
        """As :meth:`.Session.time_block`. Raises :class:`MeasurementError` if the device fails."""
        device = self._device
        keys = [(index, order[:place].count(index)) for place, index in enumerate(order)]
        with device.active():
            for index, occurrence in keys:
                if (index, occurrence) not in self._graphs:
                    self.attempt(index, partial(self.capture, occurrence=occurrence))
            device.current.value = UNKNOWN
            ready = {key: self._graphs[key] for key in keys if key[0] not in self.failures}
            times_us = [math.nan] * len(order)
            if not ready:
                return BlockTimes(times_us, math.nan)
            slot_us, throttled = self._launch(ready)
            if device.virtual:
                return BlockTimes(times_us, slot_us)
            constant_us = device.constant_us  # measured after a block, at the clock of work
            for place, key in enumerate(keys):
                if key in ready and not throttled:
                    times_us[place] = ready[key].call_us(constant_us)
        conditions = {
            "clock_mhz": device.clock_mhz(),
            "calls": self._calls_per_graph,
            "constant_us": round(constant_us, 3),
        }
        return BlockTimes(times_us, slot_us, conditions)

    def _launch(self, ready: Mapping[tuple[int, int], TimedGraph]) -> tuple[float, bool]:
        """Launch the graphs; return microseconds a graph, and whether to leave the block out."""
        graph_us = median(self._rough_us[index] * self._calls_per_graph for index, _ in ready)
        warm_ups = min(MAX_WARM_UPS, math.ceil(BLOCK_WARM_UP_US / graph_us))
        throttling, meter = self._device.throttling, self._device.clock_meter
        try:
            for graph in islice(cycle(ready.values()), warm_ups):
                graph.launch()
            # Read while the warm-up still runs: the device must not idle before the block.
            slowed, begin = throttling.slowed_ns(), time.monotonic()
            for graph in [*meter, *ready.values()]:
                graph.launch()
            torch.cuda.synchronize()
        except RuntimeError as error:
            raise MeasurementError(f"the GPU failed in a block: {first_line(error)}") from None
        seconds = time.monotonic() - begin
        slot_us = seconds * 1e6 / len(ready)
        if not throttling.slowed_since(slowed, seconds):
            self._throttled_blocks = 0
            return slot_us, False
        self._throttled_blocks += 1
        return slot_us, self._throttled_blocks <= PATIENCE
