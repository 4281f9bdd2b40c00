"""The engine of a sweep: several processes; in each, axes take turns of one block."""

import math
import random
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from itertools import chain, compress
from statistics import median

from gacprof.cliffmap.build import MIN_PROCESSES
from gacprof.cliffmap.fit import fit_blocks
from gacprof.cliffmap.judge import CHECKS, comparable, judge_sizes
from gacprof.cliffmap.run_folder import RunWriter
from gacprof.core.errors import MeasurementError
from gacprof.core.points import Axis, Block
from gacprof.core.sizes import TOLERANCE, Interval
from gacprof.devices.device import Device, Session

PROCESSES = 3  # addresses, caches and clocks differ between processes
MIN_BLOCKS = 12  # blocks before a curve is first judged; then after 24, 48 …
MAX_BLOCKS = 400  # blocks of a curve that stays undecided
FINEST = 0.004  # half the median width of penalties' intervals that ends a curve: tolerance / 5
REPLICATES = 0.25  # share of sizes that have a hidden A/A replicate
MIN_REPLICATES = 4
BLOCK_US = 50_000  # as long as the machine's state holds; longer blocks are split
MIN_CALLS = 12  # calls of a block, however long they take


def measure(
    run: RunWriter,
    open_device: Callable[[], Device],
    *,
    budget_s: float | None = None,
    started: float | None = None,
    progress: Callable[[int, int, float], None] = lambda done, curves, spent: None,
) -> None:
    """Measure the run's axes until each is decided, or the budget is spent. The budget counts from
    ``started`` on (default: now), with preparing, which nothing cuts short. ``progress`` is called
    with the number of decided curves, of all, and the share of the budget that is spent."""
    started = started or time.monotonic()
    budget_s = budget_s or math.inf
    curves = [CurveSchedule(axis, run.blocks(axis)) for axis in run.axes]
    blocks = chain.from_iterable(curve.blocks for curve in curves)
    process = 1 + max((block.process for block in blocks), default=-1)
    part, parts, spent = 1, PROCESSES, 0.0
    while part <= parts and spent < 1:
        with closing(open_device()) as device:
            prepare(run, device, curves)
            if device.environment.kind == "virtual":
                break
            if part == 1:
                fitting = budget_s / (time.monotonic() - started)  # processes, without any block
                # A second one, without which nothing is decided, begins where there is time to
                # prepare it; a third where half of the budget is left for measuring.
                parts = int(max(1, min(MIN_PROCESSES, fitting), min(PROCESSES, fitting / 2)))
            draw = random.Random(process)
            while True:
                turns = [curve for curve in curves if curve.needs_block(process, part, parts)]
                if not turns:
                    break
                for curve in draw.sample(turns, len(turns)):
                    curve.take_block(run, process)
                spent = (time.monotonic() - started) / budget_s
                progress(sum(curve.decided for curve in curves), len(curves), spent)
                if spent >= part / parts:
                    break
        part, process = part + 1, process + 1
    run.fold()


def require_budget(budget_s: float | None) -> None:
    """Raise :class:`MeasurementError` for a budget that is no positive number of seconds."""
    if budget_s is not None and not budget_s > 0:
        raise MeasurementError(f"a budget of {budget_s} seconds: give a positive number")


def prepare(run: RunWriter, device: Device, curves: Sequence["CurveSchedule"]) -> None:
    """Prepare a session of each curve on a device, and record what is known of its points."""
    sessions = device.prepare([[c.axis.point(s) for s in c.axis.sizes] for c in curves])
    for curve, session in zip(curves, sessions, strict=True):
        curve.session = session
        sizes = curve.axis.sizes
        kernels = {sizes[index]: runs for index, runs in session.kernels.items() if runs}
        run.record_points(curve.axis, kernels, curve.failures())
    run.save_points()


class CurveSchedule:
    """An axis under measurement."""

    session: Session  # in the process under way

    def __init__(self, axis: Axis, blocks: Sequence[Block] = ()) -> None:
        self.axis = axis
        self.blocks = list(blocks)
        self.slot_us = math.nan  # what a call took of the last block's time
        self.checks = 0
        self.decided = False
        self.checked_process = -1
        self._draw = random.Random(f"{self.axis.key}:{len(self.blocks)}")
        sizes = axis.sizes
        number = min(len(sizes), max(MIN_REPLICATES, round(REPLICATES * len(sizes))))
        # Drawn by the axis alone: every process and a resumed sweep have the same replicates.
        self.slots = [*sizes, *random.Random(axis.key).sample(sizes, number)]

    def failures(self) -> dict[int, str]:
        """By size: why it cannot be called."""
        return {self.axis.sizes[index]: why for index, why in self.session.failures.items()}

    def take_block(self, run: RunWriter, process: int) -> None:
        """Measure a block."""
        axis = self.axis
        order = tuple(self.next_order(self.failures()))
        timed = self.session.time_block([axis.sizes.index(size) for size in order])
        block = Block(axis.key, process, order, tuple(timed.times_us), timed.conditions)
        run.append(block)
        self.blocks.append(block)
        self.slot_us = timed.slot_us
        run.record_points(axis, {}, self.failures())

    def next_order(self, failed: Collection[int]) -> list[int]:
        """Return the sizes of the next block in a fresh random order, replicates twice."""
        slots = [size for size in self.slots if size not in failed]
        calls = len(slots)
        if self.slot_us > 0:
            calls = max(MIN_CALLS, int(min(calls, BLOCK_US / self.slot_us)))
        return self._draw.sample(slots, min(calls, len(slots)))

    def count(self, process: int | None = None) -> float:
        """Return the number of blocks, of one process if named; a part of one is a fraction."""
        calls = [len(b.order) for b in self.blocks if process in (None, b.process)]
        return sum(calls) / len(self.slots)

    def needs_block(self, process: int, part: int, parts: int) -> bool:
        """Return whether to measure another block in this process, the ``part``-th of ``parts``."""
        if len(self.session.failures) == len(self.axis.sizes):
            return False
        # Even of a decided curve: what shifts one process may have shifted the earlier ones alike.
        if self.count(process) < MIN_BLOCKS / parts:
            return True
        first_here = self.checked_process != process and self.count() >= MIN_BLOCKS
        if first_here or (self.checks < CHECKS and self.count() >= MIN_BLOCKS * 2**self.checks):
            self.check(process)
        # Blocks are left for later processes.
        return not self.decided and self.count() < MAX_BLOCKS * part / parts

    def check(self, process: int) -> None:
        """Judge the curve: decided where each size is, or penalties are known finely enough."""
        self.checks += 1
        self.checked_process = process
        fit = fit_blocks(self.blocks)
        columns = fit.sizes, fit.log_us.tolist(), fit.error.tolist()
        verdicts = judge_sizes(*columns, TOLERANCE, fit.degrees)
        undecided = False
        widths = []
        unknown = Interval(0.0, 0.0, math.inf)
        for verdict in compress(verdicts, comparable(fit.sizes)):  # no block decides the others
            undecided |= verdict.verdict == "undecided"
            penalty = verdict.penalty or unknown
            widths.append(penalty.high - penalty.low)
        self.decided = not undecided or median(widths) / 2 <= FINEST
