"""The engine of a sweep: processes, in each the axes in turn, in each turn one block."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from contextlib import closing

from gacprof.cliffmap.run_folder import RunFolder
from gacprof.core.points import Axis, Block
from gacprof.devices.device import Device, Session
from gacprof.sweeping.schedule import CurveSchedule

PROCESSES = 3
"""Addresses, caches and clocks differ between processes: of one process alone nobody knows by how
much."""

Progress = Callable[[int, int, float], None]
"""Called before each turn with the curves that need no more blocks, all curves, and the share of
the budget that is spent."""


def measure(
    run: RunFolder,
    open_device: Callable[[], Device],
    *,
    budget_s: float | None = None,
    progress: Progress = lambda done, curves, spent: None,
) -> None:
    """Measure the run's axes until each is decided, or the budget is spent; a run that was begun is
    gone on with. Each process has its share of the budget, which counts measuring, not starting."""
    curves = [CurveSchedule(axis, run.blocks(axis)) for axis in run.axes]
    process = 1 + max((b.process for curve in curves for b in curve.blocks), default=-1)
    measured_s = 0.0
    for part in range(1, PROCESSES + 1):
        with closing(open_device()) as device:
            turns = ProcessTurns(run, device, curves, process)
            if device.environment.kind == "virtual":
                break
            started = time.monotonic()
            while turns.take(part):
                now = time.monotonic()
                measured_s, started = measured_s + now - started, now
                spent = measured_s / budget_s if budget_s else 0.0
                progress(sum(curve.decided for curve in curves), len(curves), spent)
                if spent >= part / PROCESSES:
                    break
        process += 1
    run.fold()


class ProcessTurns:
    """The turns of one process: sessions of all axes on one device."""

    def __init__(
        self, run: RunFolder, device: Device, curves: list[CurveSchedule], process: int
    ) -> None:
        self._run, self._curves, self._process = run, curves, process
        self._draw = random.Random(process)
        self._sessions: dict[str, Session] = {}
        for curve in curves:
            axis = curve.axis
            session = device.prepare([axis.point(size) for size in axis.sizes])
            self._sessions[axis.key] = session
            names = {size: session.kernels(i) for i, size in enumerate(axis.sizes)}
            kernels = {size: kernels for size, kernels in names.items() if kernels}
            run.record_points(axis, kernels, failures_of(axis, session))
        run.save_points()

    def take(self, part: int) -> bool:
        """Measure a block of each curve that needs one, in random order; False where none does."""
        from_start = [c for c in self._curves if self._needs_block(c, part)]
        for curve in self._draw.sample(from_start, len(from_start)):
            axis = curve.axis
            session = self._sessions[axis.key]
            order = curve.next_order(failures_of(axis, session))
            index = {size: i for i, size in enumerate(axis.sizes)}
            times = session.time_block([index[size] for size in order])
            block = Block(axis.key, self._process, tuple(order), tuple(times))
            self._run.append(block)
            curve.blocks.append(block)
            self._run.record_points(axis, {}, failures_of(axis, session))
        return bool(from_start)

    def _needs_block(self, curve: CurveSchedule, part: int) -> bool:
        failed = failures_of(curve.axis, self._sessions[curve.axis.key])
        if len(failed) == len(curve.axis.sizes):
            return False
        return curve.needs_more(self._process, part, PROCESSES)


def failures_of(axis: Axis, session: Session) -> Mapping[int, str]:
    """By size: why it cannot be called."""
    return {axis.sizes[index]: why for index, why in session.failures.items()}
