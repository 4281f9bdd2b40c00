"""What runs beside a device of the fleet: the engine of a sweep, one batch of blocks a call."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import gacprof
from gacprof.core.points import Block, Environment, PointNote
from gacprof.devices.device import Device
from gacprof.devices.worker import IsolatedDevice, Opener
from gacprof.sweeping.engine import Engine, Outcome
from gacprof.sweeping.suite import CurvePlan, Schedule

THREADS = "OMP_NUM_THREADS"
VISIBLE = "CUDA_VISIBLE_DEVICES"


class Hello(NamedTuple):
    """What a worker opened. ``version`` is gacprof's there; ``gpu`` names a GPU as its node does,
    empty where that cannot be told."""

    environment: Environment
    timer: str
    version: str
    gpu: str


class Step(NamedTuple):
    """What one call measured. ``outcomes`` by curve, once the share is ``over``."""

    blocks: Sequence[Block]
    notes: Sequence[PointNote]
    done: float
    total: float
    over: bool
    outcomes: Mapping[str, Outcome]


class Worker:
    """Opens its device in a process of its own, so that what crashes or hangs is handled beside
    it. ``threads`` is ``OMP_NUM_THREADS`` of the caller: Ray sets one of its own."""

    def __init__(
        self,
        opener: Opener,
        *,
        timeout_s: float,
        processes: int = 1,
        isolate: bool = True,
        threads: str | None = None,
    ) -> None:
        self._opener, self._timeout_s, self._isolate = opener, timeout_s, isolate
        self._spares, self._threads = processes - 1, threads
        self._device: Device | None = None
        self._engine: Engine | None = None
        self._steps: Iterator[None] = iter(())
        self._kept: _Kept = _Kept()

    def hello(self) -> Hello:
        """Open the device. Raises :class:`MeasurementError`."""
        os.environ.pop(THREADS, None)
        if self._threads is not None:
            os.environ[THREADS] = self._threads
        if self._isolate:
            self._device = IsolatedDevice(self._opener, self._timeout_s, self._spares)
        else:
            self._device = self._opener()
        # Ray shows a worker one GPU only, as ``cuda:0``: which one of the node that is.
        visible = os.environ.get(VISIBLE, "")
        gpu = "" if "," in visible else f"cuda:{visible}" if visible.isdigit() else visible
        return Hello(self._device.environment, self._device.timer, gacprof.__version__, gpu)

    def begin(
        self,
        timing: Schedule,
        plans: Sequence[CurvePlan],
        blocks: Sequence[Block],
        budget_s: float | None,
        salt: str,
    ) -> None:
        """Take a share of the curves, and the blocks of them that there are."""
        assert self._device is not None
        if self._engine is not None:
            self._device.renew()
        self._kept = _Kept()
        self._engine = Engine(
            timing, self._device, plans, self._kept, blocks=blocks, budget_s=budget_s, salt=salt
        )
        self._steps = self._engine.steps()

    def step(self) -> Step:
        """Measure the next batch. Raises :class:`MeasurementError` where the device cannot."""
        assert self._engine is not None
        over = next(self._steps, self) is self
        kept, outcomes = self._kept, self._engine.outcomes() if over else {}
        measured = Step(kept.blocks, kept.notes, *self._engine.progress(), over, outcomes)
        kept.blocks, kept.notes = [], []
        return measured

    def close(self) -> None:
        if self._device is not None:
            self._device.close()
        self._device = None


@dataclass
class _Kept:
    """Blocks and notes until they are handed over."""

    blocks: list[Block] = field(default_factory=list)
    notes: list[PointNote] = field(default_factory=list)

    def append(self, *blocks: Block) -> None:
        self.blocks.extend(blocks)

    def note(self, notes: Iterable[PointNote]) -> None:
        self.notes += notes
