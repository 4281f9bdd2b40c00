"""A device that was not measured: it returns planted latencies, for tests of what uses a device."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from gacprof.core.points import Environment, KernelRun, Point
from gacprof.devices.device import BlockTimes

CLOCK_SPREAD = 1e-9
"""Of a clock so fine that no two calls take the same time: tied times are those of a coarse one."""
RECORDED = Environment("cpu", "recorded", "none", {"cores": 1}, {"gacprof": "0"})


class RecordedSession:
    def __init__(self, device: RecordedDevice, points: Sequence[Point]) -> None:
        self._device, self._points = device, list(points)
        self.failures: Mapping[int, str] = {
            index: device.refused[point.key]
            for index, point in enumerate(self._points)
            if point.key in device.refused
        }
        self.kernels = {
            index: tuple(KernelRun(name, math.nan) for name in device.kernel_names(point))
            for index, point in enumerate(self._points)
        }
        self._clock = random.Random(0)

    def time_block(self, order: Sequence[int]) -> BlockTimes:
        times = []
        for index in order:
            failed = index in self.failures
            latency_us = math.nan if failed else self._device.latency(self._points[index])
            times.append(latency_us * self._clock.gauss(1, CLOCK_SPREAD))
        self._device.blocks.append([self._points[index] for index in order])
        return BlockTimes(times, float(np.nanmedian(times)))


class RecordedDevice:
    """``latency`` gives the µs of a call; let it draw noise if there is to be any.

    ``refused`` are reasons by the key of points that cannot be prepared, ``kernel_names`` names the
    kernels of a point. ``blocks`` are the points of each block timed so far, in order.
    """

    def __init__(
        self,
        latency: Callable[[Point], float],
        environment: Environment = RECORDED,
        refused: Mapping[str, str] | None = None,
        kernel_names: Callable[[Point], tuple[str, ...]] = lambda point: (),
    ) -> None:
        self.latency, self.environment, self.kernel_names = latency, environment, kernel_names
        self.refused = dict(refused or {})
        self.blocks: list[list[Point]] = []

    def prepare(self, axes: Sequence[Sequence[Point]]) -> list[RecordedSession]:
        return [RecordedSession(self, points) for points in axes]

    def close(self) -> None:
        pass
