"""One curve under measurement: its blocks as a matrix of log times, and their fit.

A sweep adds to it block by block and judges it; the map of the finished run judges the same form.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from math import log

import numpy as np
from numpy.typing import NDArray

from gacprof.core.points import Block, Slot
from gacprof.stats.fit import FEWEST_BLOCKS, Fit, Floats, fit_blocks

CONTENDED = 0.5
"""Where more of a curve's slots have too few undisturbed calls, its times are those of the
scheduler: all dims then look alike, and nothing looks noisy."""

BlockRow = dict[int, tuple[float, bool]]
"""A block by slot: the log of its time (µs), and whether the call was disturbed."""


def block_row(calls: Iterable[tuple[int, float, bool]]) -> BlockRow:
    """A block from its calls (slot, µs, disturbed) in the order made: of a slot's calls the first
    undisturbed one counts, else the last."""
    row: BlockRow = {}
    for slot, us, disturbed in calls:
        if slot not in row or row[slot][1]:
            row[slot] = log(us), disturbed
    return row


def log_matrix(rows: Sequence[BlockRow], slots: int) -> tuple[Floats, bool]:
    """Blocks as log times [blocks, slots], NaN where a block did not hold a slot; and whether
    disturbed calls have left too few others to most slots: then all calls stay.

    Else disturbed calls are left out: on a busy machine half of the calls may be of several times
    their length. A slot that has no others keeps its first ones, so few that its error stays
    unknown.
    """
    log_us, disturbed = np.full((len(rows), slots), np.nan), np.zeros((len(rows), slots), bool)
    for number, row in enumerate(rows):
        if row:
            log_us[number, list(row)], disturbed[number, list(row)] = zip(
                *row.values(), strict=True
            )
    others: NDArray[np.int64] = np.sum(~np.isnan(log_us) & ~disturbed, axis=0)
    if disturbed.any() and np.mean(others < FEWEST_BLOCKS) > CONTENDED:
        return log_us, True
    for slot in np.flatnonzero((others == 0) & disturbed.any(axis=0)):
        disturbed[np.flatnonzero(disturbed[:, slot])[: FEWEST_BLOCKS - 1], slot] = False
    log_us[disturbed] = np.nan
    return log_us, False


def units_of(blocks: Sequence[Block]) -> list[int]:
    """The number of each block's process; of its device, where several measured the curve: what
    processes of one device have in common would pass for certain otherwise."""
    names = sorted({block.device for block in blocks})
    several = len(names) > 1
    return [names.index(block.device) if several else block.process for block in blocks]


class CurveBlocks:
    """The blocks of a curve over ``axis``, its slots in the order of their columns, and how many
    blocks hold each. ``throttled`` says why the device ran below its clock, if it did in all
    blocks."""

    def __init__(self, axis: str, blocks: Iterable[Block] = (), throttled: str = "") -> None:
        self.axis, self.throttled = axis, throttled
        self.blocks: list[Block] = []
        self.slots: list[Slot] = []
        self.counts: list[int] = []
        self._columns: dict[Slot, int] = {}
        self._rows: list[BlockRow] = []
        for block in blocks:
            self.add(block)

    def add(self, block: Block) -> Iterable[int]:
        """Take in a block; the columns of its slots."""
        row = block_row((self.column(c.slot), c.us, c.disturbed) for c in block.calls)
        self.blocks.append(block)
        self._rows.append(row)
        for column in row:
            self.counts[column] += 1
        self._forget()
        return row.keys()

    def column(self, slot: Slot) -> int:
        """The slot's column, a new one where it has none."""
        if slot not in self._columns:
            self._columns[slot] = len(self.slots)
            self.slots.append(slot)
            self.counts.append(0)
            self._forget()
        return self._columns[slot]

    def _forget(self) -> None:
        for derived in ("_matrix", "fit"):
            self.__dict__.pop(derived, None)

    @cached_property
    def _matrix(self) -> tuple[Floats, bool]:
        return log_matrix(self._rows, len(self.slots))

    @property
    def log_us(self) -> Floats:
        """Log times [blocks, slots]."""
        return self._matrix[0]

    @property
    def contended(self) -> bool:
        """Whether most slots have hardly any undisturbed calls."""
        return self._matrix[1]

    @cached_property
    def fit(self) -> Fit:
        return fit_blocks(self.log_us, units_of(self.blocks))

    @property
    def disturbed(self) -> float:
        """The share of the calls that were."""
        return float(np.mean([flag for row in self._rows for _, flag in row.values()]))

    @property
    def dims(self) -> list[int]:
        """The slots' places on the axis."""
        return [slot.point.dim[self.axis] for slot in self.slots]

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """(slot, its replicate) by their columns."""
        replicates = {slot.point: i for i, slot in enumerate(self.slots) if slot.replicate}
        return [
            (i, replicates[slot.point])
            for i, slot in enumerate(self.slots)
            if not slot.replicate and slot.point in replicates
        ]

    @property
    def devices(self) -> list[str]:
        """The devices that measured it, of several equal ones."""
        return sorted({block.device for block in self.blocks})
