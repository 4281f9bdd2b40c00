"""The schedule of one curve: the order of its next block, and when it has blocks enough."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass, field
from statistics import median

from gacprof.cliffmap.fit import fit_blocks
from gacprof.cliffmap.judge import CHECKS, comparable, judge_sizes
from gacprof.core.points import Axis, Block
from gacprof.core.sizes import TOLERANCE

MIN_BLOCKS = 12
"""Before a curve is first judged; then after 24, 48 …"""
MAX_BLOCKS = 400
"""Of a curve that stays undecided."""
FINEST = 0.004
"""Half the width of penalties' intervals (the median) from which more blocks decide nothing that
matters: a fifth of the tolerance."""
REPLICATES = 0.25
"""The share of sizes that have a hidden A/A replicate."""
MIN_REPLICATES = 4
BLOCK_US = 50_000
"""A block is as long as the machine's state holds: tens of milliseconds (blocks of more calls take
turns through the sizes)."""
MIN_CALLS = 12
"""Of a block, however long they take."""


@dataclass
class CurveSchedule:
    """An axis under measurement, with its blocks so far."""

    axis: Axis
    blocks: list[Block] = field(default_factory=list)
    checks: int = 0
    decided: bool = False
    checked_process: int = -1

    def __post_init__(self) -> None:
        self._draw = random.Random(f"{self.axis.key}:{len(self.blocks)}")
        sizes = self.axis.sizes
        number = min(len(sizes), max(MIN_REPLICATES, round(REPLICATES * len(sizes))))
        replicates = random.Random(self.axis.key).sample(sizes, number)
        self.slots = [*sizes, *replicates]

    def next_order(self, failed: Collection[int]) -> list[int]:
        """The sizes of the next block in a fresh random order, replicates twice."""
        slots = [size for size in self.slots if size not in failed]
        calls = len(slots)
        if self.blocks:
            usual_us = median(self.blocks[-1].times_us)
            calls = max(MIN_CALLS, int(min(calls, BLOCK_US / usual_us))) if usual_us > 0 else calls
        return self._draw.sample(slots, min(calls, len(slots)))

    def count(self, process: int | None = None) -> float:
        """The number of blocks, of one process if named, partial ones by their share."""
        calls = [len(b.order) for b in self.blocks if process in (None, b.process)]
        return sum(calls) / len(self.slots)

    def needs_more(self, process: int, part: int, parts: int) -> bool:
        """Tell if the curve needs a block in this process, the ``part``-th of ``parts``: each adds
        its share even where earlier ones decided everything, since they may all have had the same
        quirk, and leaves blocks for later ones."""
        share = MIN_BLOCKS / parts
        if self.count(process) < share:
            return True
        first_here = self.checked_process != process and self.count() >= MIN_BLOCKS
        if first_here or (self.checks < CHECKS and self.count() >= MIN_BLOCKS * 2**self.checks):
            self.check(process)
        return not self.decided and self.count() < MAX_BLOCKS * part / parts

    def check(self, process: int) -> None:
        """Judge the curve as it is now: it is decided where no size is left undecided that more
        blocks could decide, or penalties are known finely enough."""
        self.checks += 1
        self.checked_process = process
        fit = fit_blocks(self.blocks)
        verdicts = judge_sizes(
            fit.sizes, fit.log_us.tolist(), fit.error.tolist(), TOLERANCE, fit.degrees
        )
        open_sizes, widths = 0, []
        for verdict, compared in zip(verdicts, comparable(fit.sizes), strict=True):
            if compared:
                open_sizes += verdict.verdict == "undecided"
                penalty = verdict.penalty
                widths.append(float("inf") if penalty is None else penalty.high - penalty.low)
        self.decided = not open_sizes or median(widths) / 2 <= FINEST
