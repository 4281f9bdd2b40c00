"""A planted device: multiples of 8 are served well, everything else 40 % slower."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.scan import inventory_of
from gacprof.cliffmap.build import build_map
from gacprof.cliffmap.cliffmap import CliffMap
from gacprof.core.points import Axis, Block, Environment, Point
from gacprof.sweeping.for_model import suite_for_model

TOKENS = {1: 1.0, 64: 1.0}
PLANTED = Environment("cpu", "planted device", "none", {}, {"planted": "1"})
BLOCKS, PROCESSES = 8, 2
"""Enough: the device is exact."""
CLOCK_SPREAD = 1e-9
"""Of a clock so fine that no two calls take the same time: tied times are those of a coarse one."""

Latency = Callable[[Point], float]


def planted_latency(point: Point) -> float:
    """µs: work plus a launch, and 40 % more where a dim is no multiple of 8."""
    if point.operator != "linear":
        return 50.0
    m, n, k = (point.dims[axis] for axis in "MNK")
    slow = 1.4 if n % 8 or k % 8 else 1.0
    return (2.0 + m * n * k / 1e6) * slow


@dataclass(frozen=True)
class PlantedRun:
    """What a sweep of the device would leave: blocks of these axes."""

    axes: tuple[Axis, ...]
    latency: Latency = planted_latency
    kernel_names: Callable[[Point], tuple[str, ...]] = lambda point: ()
    environment: Environment = PLANTED
    name: str = "planted"
    spread: float = 0.0
    """Of the log of each call."""
    refused: Mapping[int, str] | None = None
    ended: bool = True
    processes: int = PROCESSES

    def blocks(self, axis: Axis) -> list[Block]:
        draw = random.Random(axis.key)
        times = {size: self.latency(axis.point(size)) for size in axis.sizes}
        slots = [
            size for size in (*axis.sizes, *axis.sizes[::4]) if size not in self.failures(axis)
        ]
        blocks = []
        for number in range(BLOCKS):
            order = draw.sample(slots, len(slots))
            spread = max(self.spread, CLOCK_SPREAD)
            took = [times[size] * (1 + spread * draw.gauss(0, 1)) for size in order]
            process = number * self.processes // BLOCKS
            blocks.append(Block(axis.key, process, tuple(order), tuple(took)))
        return blocks

    def kernels(self, axis: Axis) -> Mapping[int, tuple[str, ...]]:
        names = {size: self.kernel_names(axis.point(size)) for size in axis.sizes}
        return {size: kernels for size, kernels in names.items() if kernels}

    def failures(self, axis: Axis) -> Mapping[int, str]:
        return self.refused or {}


def planted_map_of(
    checkpoint: Inventory | Path,
    tokens: Iterable[int] = tuple(TOKENS),
    latency: Latency = planted_latency,
    **options: Any,
) -> CliffMap:
    """The device's map around a checkpoint's own sizes; ``options`` go to ``suite_for_model``."""
    suite = suite_for_model(inventory_of(checkpoint), sorted(tokens), **options)
    return build_map(PlantedRun(suite.axes, latency))
