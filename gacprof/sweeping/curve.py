"""One curve while it is swept: which slots the next block calls, and whether it is decided."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from statistics import median

import numpy as np

from gacprof.cliffmap.curves import Measured, judge_curve, measured_of, pooled
from gacprof.core.points import Block, Call, Point, Slot
from gacprof.devices.device import Session, TimedCall
from gacprof.stats.blocks import CurveBlocks
from gacprof.stats.judge import LOOKS
from gacprof.sweeping.refine import Known, next_dims
from gacprof.sweeping.suite import CurvePlan, Schedule

BLOCK_MS = 60.0
"""What a block should take: the machine's state hardly changes within tens of milliseconds."""
FEWEST_SLOTS, MOST_SLOTS = 16, 128
"""Bounds on a block's slots. Each block of a larger curve holds other slots, drawn
anew, so that blocks link all its dims."""
BATCH_MS = 250.0
"""Blocks measured without a pause between them, all together: what a crash can lose."""
LINKS = 0.25
"""The share of a partial block's slots that is drawn from all; the others are those called least.
These links compare newly added dims with the others."""
COARSE_BLOCKS = 8
"""Calls of each dim before a refined axis asks which dims come next."""
SMALLEST_CLIFF = 0.03
"""What refinement takes for a change of latency."""
GIVE_UP = 3
"""Failures of a slot after which it is no longer called."""


class CurveState:
    """A curve so far: its blocks (``held``), and how it was judged at the last look. With a
    ``salt`` the orders of its blocks are others, its replicates the same."""

    def __init__(self, plan: CurvePlan, timing: Schedule, salt: str = "") -> None:
        self.plan, self._timing = plan, timing
        self.held = CurveBlocks(plan.axis)
        self.slots, self.counts = self.held.slots, self.held.counts
        self.kernels: Mapping[Point, tuple[str, ...]] = {}
        self._failures: dict[int, int] = {}
        self._calls_in: defaultdict[int, Counter[int]] = defaultdict(Counter)
        """By process and slot."""
        self._sample: frozenset[int] = frozenset()
        """The slots that this process calls of a decided curve; empty: all."""
        self.looked_at = self.losses = 0
        self.noise: float | None = None
        """The standard error (log) that one block would leave, by the last look."""
        self.judged_in: int | None = None
        """The process after whose share it was judged."""
        self.open_share, self.half_width, self.process_effect = 1.0, inf, inf
        """Of its dims without a verdict, of penalty intervals, and what a process may add to a dim
        at most (the bound of a standard deviation, log)."""
        first = [d for d in plan.dims if d not in plan.refined]
        self._refining = bool(plan.refined)
        if plan.refined:
            first += next_dims(sorted(plan.refined), {}, SMALLEST_CLIFF)
        self._draw = random.Random(f"{timing.seed}:{plan.key}")
        self._add(first)
        if salt:
            self._draw = random.Random(f"{timing.seed}:{plan.key}:{salt}")

    def _add(self, dims: Sequence[int]) -> None:
        """New dims with their A/A replicates: a share of them, a few at least, spread evenly."""
        points = [self.plan.points[d] for d in sorted(dims)]
        number = self._timing.replicates_of(len(points))
        offset = self._draw.random()
        doubled = {int((i + offset) * len(points) / number) for i in range(number)}
        fresh = [Slot(point) for point in points]
        for slot in fresh + [Slot(points[i], replicate=True) for i in sorted(doubled)]:
            self.held.column(slot)

    @property
    def callable_slots(self) -> list[int]:
        if not self._failures:
            return list(range(len(self.slots)))
        return [i for i in range(len(self.slots)) if self._failures.get(i, 0) < GIVE_UP]

    @property
    def live(self) -> list[int]:
        """The slots that this process calls."""
        return [i for i in self.callable_slots if not self._sample or i in self._sample]

    def begin(self) -> None:
        """Another process begins. Of a decided curve it calls a sample, A/A pairs first: enough to
        tell what processes differ by, and little to prepare."""
        self._sample = frozenset()
        live = self.callable_slots
        if not self.decided or len(live) <= FEWEST_SLOTS:
            return
        twins = [i for i in live if self.slots[i].replicate]
        twins = self._draw.sample(twins, min(len(twins), FEWEST_SLOTS // 2))
        pairs = {*twins, *(self.held.column(Slot(self.slots[i].point)) for i in twins)}
        others = [i for i in live if i not in pairs]
        self._sample = frozenset(pairs.union(self._draw.sample(others, FEWEST_SLOTS - len(pairs))))

    @property
    def blocks(self) -> int:
        """How many blocks the curve has had, partial ones by their share."""
        live = self.callable_slots
        return int(sum(self.counts[i] for i in live) / len(live)) if live else 0

    def fail(self, place: int, *, for_good: bool = False) -> None:
        self._failures[place] = GIVE_UP if for_good else self._failures.get(place, 0) + 1

    def order(self) -> list[int]:
        """The slots of the next block, in a fresh random order."""
        live = self.live
        size = self._block_size()
        if len(live) <= size:
            return self._draw.sample(live, len(live))
        links = max(2, int(LINKS * size))
        by_count = sorted(live, key=lambda i: (self.counts[i], self._draw.random()))
        chosen, others = by_count[: size - links], by_count[size - links :]
        chosen += self._draw.sample(others, links)
        return self._draw.sample(chosen, len(chosen))

    def _block_size(self) -> int:
        typical_us = self.typical_us
        if typical_us is None:
            return MOST_SLOTS
        return int(min(MOST_SLOTS, max(FEWEST_SLOTS, BLOCK_MS * 1e3 / typical_us)))

    @property
    def typical_us(self) -> float | None:
        """A call's usual time by the latest block."""
        return median(c.us for c in self.held.blocks[-1].calls) if self.held.blocks else None

    @property
    def block_ms(self) -> float:
        """What the next block will take; infinite where none was measured."""
        typical_us = self.typical_us
        size = min(len(self.live), self._block_size())
        return inf if typical_us is None else typical_us * size / 1e3

    def take(self, block: Block) -> None:
        """Take in a block, of an earlier call of the sweep too, dims that it adds included."""
        self._calls_in[block.process].update(self.held.add(block))

    def refined(self) -> bool:
        """Ask a refined axis for more dims, once all have calls enough; whether it gave any."""
        waiting = any(self.counts[i] < COARSE_BLOCKS for i in self.callable_slots)
        if not self._refining or not self.held.blocks or waiting:
            return False
        wanted = next_dims(sorted(self.plan.refined), self._known(), SMALLEST_CLIFF)
        self._add(wanted)
        self._refining = bool(wanted)
        return self._refining

    def _known(self) -> Known:
        """What was measured of the refined dims; None of those without any time."""
        measured = {m.d: m for m in pooled(self.held.dims, self.held.fit)}
        known: dict[int, Measured | None] = {}
        for d, slot in zip(self.held.dims, self.slots, strict=True):
            if d in self.plan.refined:
                found, kernels = measured.get(d), self.kernels.get(slot.point, ())
                known[d] = found and replace(found, kernels=kernels)
        return known

    def catch_up(self) -> None:
        """After a replay: the rounds of refinement that are past, and the looks, made as one."""
        self.refined()
        while self.due:
            self.looked_at += 1
        if self.looked_at:
            self.looked_at -= 1
            self.look()

    @property
    def due(self) -> bool:
        """Whether it is time to look: at a few fixed numbers of blocks, each twice the last."""
        return self.blocks >= self._timing.blocks << self.looked_at and self.looked_at < LOOKS

    @property
    def decided(self) -> bool:
        """Whether no dim was open at the last look, or its penalties were known finely enough."""
        return not self._refining and (
            not self.open_share or self.half_width <= self._timing.finest
        )

    @property
    def undecided(self) -> bool:
        """Whether a dim was neither safe nor misaligned at the last look."""
        return bool(self.open_share)

    @property
    def finished(self) -> bool:
        """Whether it is decided after the share of as many processes as are asked for, or of two
        that bound what a third would add, or has had all its blocks."""
        if not self.callable_slots or self.blocks >= self._timing.most_blocks:
            return True
        if not self.decided:
            return False
        whole = sum(self.blocks_in(process) >= self.share for process in self._calls_in)
        alike = whole > 1 and self.process_effect <= self._timing.finest
        return alike or whole >= self._timing.processes

    @property
    def blocks_left(self) -> float:
        """How many more blocks it is likely to have."""
        if self.finished:
            return 0.0
        if self.decided:  # what later processes add
            return max(1.0, self.share * self._timing.processes - self.blocks)
        likely = self._timing.usual_blocks
        if self.looked_at:
            likely = self._timing.blocks_until(self.half_width, self.blocks)
        next_look = min(self._timing.blocks << self.looked_at, self._timing.most_blocks)
        return max(1.0, max(likely, next_look) - self.blocks)

    @property
    def share(self) -> float:
        """The blocks that each process adds at least."""
        return self._timing.blocks / self._timing.processes

    def blocks_in(self, process: int) -> float:
        """How often a process has called each slot that it called, on average."""
        calls = self._calls_in[process]
        return calls.total() / max(1, len(calls))

    def look(self) -> None:
        """Judge the curve as it is now. Where a sample leaves it undecided, the process calls all
        slots, and it is judged again after that."""
        self.looked_at += 1
        own = [i for i, s in enumerate(self.slots) if not s.replicate and self.counts[i]]
        if len(own) < 2:  # nothing to compare it with
            self.open_share = self.half_width = 0.0
            return
        fit = self.held.fit
        known = fit.error[np.isfinite(fit.error)]
        if len(known):
            self.noise = float(np.median(known)) * max(1, self.blocks) ** 0.5
        found = judge_curve(measured_of(self.held), self._timing.tolerance)
        self.open_share = found.undecided / max(1, len(found.d))
        self.half_width, self.process_effect = found.half_width, fit.between_most**0.5
        if self._sample and not self.decided:
            self._sample, self.judged_in = frozenset(), None


class OpenSlots:
    """A device's session of some of a curve's slots, by their ``places`` on the curve."""

    def __init__(self, state: CurveState, session: Session, places: Sequence[int]) -> None:
        self.state, self.session, self.places = state, session, list(places)
        self._at = {place: i for i, place in enumerate(places)}

    def order(self, places: Sequence[int]) -> list[int]:
        """These places as the session's own slots, without those that it does not hold."""
        return [self._at[place] for place in places if place in self._at]

    def call(self, timed: TimedCall) -> Call:
        """A call of the session's as it is stored."""
        slot = self.state.slots[self.places[timed.slot]]
        return Call(slot.point, slot.replicate, timed.us, timed.disturbed)


def shares(states: Sequence[CurveState]) -> Iterator[float]:
    """How often each curve is to have a block, 1 for the most urgent.

    A block of n slots takes n calls, and what it decides is worth the curve's weight in the
    model's time. To make the sum of weight × error small at a given cost, blocks are dealt out
    as (weight × noise / n)^(2/3): the minimum of Σ w·σ/√b under Σ b·n. A curve has a tenth at
    least. One that was not looked at yet is taken to be as noisy as the others.
    """
    known = [s.noise for s in states if s.noise]
    usual = float(np.median(known)) if known else 1.0
    worth = [
        (s.plan.weight * (s.noise or usual) / max(1, len(s.callable_slots))) ** (2 / 3)
        for s in states
    ]
    most = max(worth, default=1.0)
    for each in worth:
        yield max(0.1, each / most)


def batches(states: Sequence[CurveState]) -> Iterator[list[CurveState]]:
    """The curves in the same order, in batches of :data:`BATCH_MS` at most; one whose block's time
    is not known yet is alone."""
    batch: list[CurveState] = []
    filled = 0.0
    for state in states:
        taken = state.block_ms
        if batch and filled + taken > BATCH_MS:
            yield batch
            batch, filled = [], 0.0
        batch.append(state)
        filled += taken
    if batch:
        yield batch
