"""The CPU as a device: a monotonic clock around each call, compute threads bound to cores."""

import math
import time
from collections.abc import Callable, Sequence
from ctypes import c_longlong
from itertools import compress, cycle
from typing import Any

import torch

from gacprof import operators
from gacprof.core.errors import MeasurementError
from gacprof.core.points import KernelRun, Point
from gacprof.devices.device import UNKNOWN, BlockTimes, first_line
from gacprof.devices.environment import read_environment
from gacprof.devices.memory import Arenas
from gacprof.devices.threads import ComputeThreads, lost_core, no_collection

# After a pause longer than AWAKE_S, calls for WAKE_S run 6 % slower and are not recorded.
AWAKE_S, WAKE_S = 0.001, 0.004
# Between two uses of a cold weight: more than the cores' share of a last-level cache. A virtual
# machine reports its host's cache, so that the size cannot be asked for.
REUSE_BYTES = 256 << 20


class CpuDevice:
    """This machine's CPU with as many threads as torch uses."""

    def __init__(self) -> None:
        self.environment = read_environment("cpu")
        self.current = c_longlong(UNKNOWN)  # place of the point under way, for a worker's parent
        self.arenas = Arenas(torch.device("cpu"), int(self.environment.facts["memory_bytes"]))
        self.threads = ComputeThreads()
        self.last_call_s = -math.inf
        self.prepared_points = 0

    def prepare(self, axes: Sequence[Sequence[Point]]) -> list["CpuSession"]:
        return [CpuSession(self, points) for points in axes]

    def close(self) -> None:
        self.threads.close()


class CpuSession:
    """Points whose calls are ready, each timed by itself."""

    def __init__(self, device: CpuDevice, points: Sequence[Point]) -> None:
        self._device, self._points = device, points
        self._first_place = device.prepared_points
        device.prepared_points += len(points)
        self.failures: dict[int, str] = {}
        self.kernels: dict[int, tuple[KernelRun, ...]] = {}  # not known
        self._calls: dict[int, Callable[..., Any]] = {}
        with torch.inference_mode():
            for index, point in enumerate(points):
                device.current.value = self._first_place + index
                try:
                    if point.dtype == "tf32":
                        raise MeasurementError("tf32 is a mode of CUDA tensor cores")
                    device.arenas.reserve(point, REUSE_BYTES)
                    operator = operators.get(point.operator)
                    self._calls[index] = operator.call(point, torch.device("cpu"))
                except Exception as error:  # an operator may raise anything
                    self.failures[index] = first_line(error)
                else:
                    self._time(index, replicate=False)  # the first of a shape makes its kernel

    def time_block(self, order: Sequence[int]) -> BlockTimes:
        times_us = [math.nan] * len(order)
        waits_us = [0.0] * len(order)
        with no_collection(), torch.inference_mode():
            self._wake(order)
            begin = time.perf_counter()
            for place, index in enumerate(order):
                if index not in self.failures:
                    replicate = index in order[:place]
                    times_us[place], waits_us[place] = self._time(index, replicate)
        self._device.last_call_s = time.perf_counter()
        slot_us = (self._device.last_call_s - begin) * 1e6 / len(order)
        for place in compress(range(len(order)), lost_core(times_us, waits_us)):
            times_us[place] = math.nan
        return BlockTimes(times_us, slot_us)

    def _wake(self, order: Sequence[int]) -> None:
        """Make unrecorded calls, at least one: what ran before may have filled the cache."""
        # From the last on, so that the first call recorded does not follow itself.
        callable_order = [index for index in reversed(order) if index not in self.failures]
        begin = time.perf_counter()
        paused = begin - self._device.last_call_s > AWAKE_S
        until = begin + WAKE_S if paused else begin
        for index in cycle(callable_order):
            self._time(index, replicate=False)
            if time.perf_counter() >= until:
                return

    def _time(self, index: int, replicate: bool) -> tuple[float, float]:
        """Return the microseconds of a call, and of its longest thread's wait for a core."""
        device, clock = self._device, time.perf_counter_ns
        device.current.value = self._first_place + index
        try:
            call = device.arenas.bind(self._points[index], self._calls[index], replicate=replicate)
            before = device.threads.waits_ns()
            begin = clock()
            call()
        except Exception as error:  # an operator may raise anything
            self.failures[index] = first_line(error)
            return math.nan, 0.0
        end = clock()
        return (end - begin) / 1e3, device.threads.longest_wait_us(before)
