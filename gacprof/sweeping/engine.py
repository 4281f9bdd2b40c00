"""The engine of a sweep: blocks are measured until every curve is decided."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple, Protocol

from gacprof.core import Progress
from gacprof.core.errors import MeasurementError, first_line
from gacprof.core.files import Record
from gacprof.core.points import LEVEL, Block, Call, Point, PointNote, curve_key
from gacprof.devices.device import BlockTimes, Device
from gacprof.devices.worker import WorkerLostError
from gacprof.sweeping.curve import (
    BLOCK_MS,
    GIVE_UP,
    CurveState,
    OpenSlots,
    batches,
    shares,
)
from gacprof.sweeping.suite import CurvePlan, Schedule

LEVEL_SHARE = 0.05
"""Of the time, for level blocks: they tell one number a curve."""
FEWEST_LEVEL_BLOCKS = 4
"""Of a process, whatever their share of the time."""


@dataclass(frozen=True)
class RunSummary(Record):
    """What a sweep measured. ``seconds`` counts this call only, not what it resumed."""

    folder: Path
    curves: int
    points: int
    blocks: int
    calls: int
    failed: int
    seconds: float
    undecided: int = 0
    """Curves with dims that were neither safe nor misaligned when the sweep ended."""
    unfinished: int = 0
    """Curves that the budget ended before that; a resume goes on with them."""


class CurveOutcome(NamedTuple):
    """Whether a curve has dims that are neither safe nor misaligned, and whether it was cut short
    by the budget."""

    undecided: bool
    unfinished: bool


class Sink(Protocol):
    """Where an engine leaves what it measures; what it left is safe on return."""

    def append(self, *blocks: Block) -> None: ...

    def note(self, notes: Iterable[PointNote]) -> None: ...


class SweepEngine:
    """Measures ``curves`` on ``device`` and leaves blocks in ``sink``; goes on from the ``blocks``
    and ``notes`` of an earlier engine. ``budget_s`` ends it after so many seconds. Engines of
    another ``salt`` draw other orders."""

    def __init__(
        self,
        timing: Schedule,
        device: Device,
        curves: Sequence[CurvePlan],
        sink: Sink,
        *,
        blocks: Iterable[Block] = (),
        notes: Mapping[Point, PointNote] | None = None,
        progress: Progress | None = None,
        budget_s: float | None = None,
        salt: str = "",
    ) -> None:
        self._timing, self._device, self._sink = timing, device, sink
        self._progress, self._budget_s = progress, budget_s
        self._states = [CurveState(plan, timing, salt) for plan in curves]
        self._started = time.monotonic()
        self._draw = random.Random(timing.seed)
        self._sessions: dict[str, list[OpenSlots]] = {}
        self._noted: dict[Point, PointNote] = dict(notes or {})
        self._calls = self._blocks = self._next = self._process = 0
        self._levelling_s, self._levelled, self._levels = 0.0, 0, True
        self._replay(blocks)

    def _replay(self, blocks: Iterable[Block]) -> None:
        """Start from what an earlier engine measured."""
        by_key = {state.plan.key: state for state in self._states}
        for block in blocks:
            state = by_key.get(curve_key(block.calls[0].point, block.axis)) if block.calls else None
            if state is not None:
                state.take(block)
            self._next, self._process = block.number + 1, max(self._process, block.process + 1)
            self._blocks += 1
            self._calls += len(block.calls)
        for state in self._states:
            state.catch_up()
        self._replayed = sum(state.blocks for state in self._states)

    def steps(self) -> Iterator[None]:
        """Measure; yields after each batch of blocks (:data:`.curve.BATCH_MS`).

        Each process in turn has its share of the time or of the blocks.
        """
        parts = self._timing.processes
        for part in range(1, parts + 1):
            if all(state.finished for state in self._states):
                return
            if part > 1:
                self._renew()
            for state in self._states:
                state.begin()
            self._device.burn_in()
            yield from self._part(part, parts)
            self._process += 1

    def _part(self, part: int, parts: int) -> Iterator[None]:
        """Blocks of the curves, interleaved, until the part's time is up or no curve needs one."""
        until = None if self._budget_s is None else self._started + part / parts * self._budget_s
        credit = dict.fromkeys((s.plan.key for s in self._states), 1.0)
        while True:
            todo = [s for s in self._states if not self._enough(s, part, parts)]
            if not todo:
                return
            for state, share in zip(todo, shares(todo), strict=True):
                credit[state.plan.key] += share
            due = [state for state in todo if credit[state.plan.key] >= 1]
            for state in due:
                credit[state.plan.key] -= 1
            self._draw.shuffle(due)
            for batch in batches(due):
                if until is not None and time.monotonic() >= until:
                    return
                self._interleaved(batch)
                for state in batch:
                    self._look(state, added=part > 1)
                yield
            self._level()

    def _enough(self, state: CurveState, part: int, parts: int) -> bool:
        """Whether a curve needs no more blocks in this process.

        Each process measures its share of the fewest blocks, even where earlier ones decided
        everything: they may all have had the same quirk. Of a decided curve these are blocks of a
        sample of its slots (:meth:`.CurveState.begin`). Of an undecided curve it measures its
        share of the most blocks, so that blocks are left for later processes; with a budget, what
        of them fits into its share of the time.
        """
        if state.finished:
            return True
        if part == parts or state.blocks_in(self._process) < state.share:
            return False
        if state.decided:
            return True
        return state.blocks >= part / parts * self._timing.most_blocks

    def _interleaved(self, states: Sequence[CurveState]) -> None:
        """A block of each curve, one right after the other; one at a time where the worker does
        not survive it, to find the culprit."""
        if self._progress:
            self._progress(*self.progress(), next(iter(states[0].plan.points.values())))
        try:
            self._measure(states)
        except WorkerLostError as lost:
            self._sessions.clear()
            self._process += 1  # what follows runs in another one
            if len(states) > 1:
                for state in states:
                    self._interleaved([state])
                return
            self._find_culprit(states[0], str(lost))
        for state in states:
            state.refined()

    def _measure(self, states: Sequence[CurveState]) -> None:
        wanted = [piece for state in states for piece in self._pieces(state)]
        times = self._device.blocks([(held.session, own) for held, own in wanted])
        blocks = []
        for state in states:
            pieces = [
                (held, taken)
                for (held, _), taken in zip(wanted, times, strict=True)
                if held.state is state
            ]
            for held, taken in pieces:
                self._fail(held, taken.failed)
            calls = tuple(held.call(timed) for held, taken in pieces for timed in taken.calls)
            if calls:
                block = self._block(state.plan.axis, calls, [taken for _, taken in pieces])
                state.take(block)
                blocks.append(block)
        if blocks:
            self._sink.append(*blocks)

    def _pieces(self, state: CurveState) -> list[tuple[OpenSlots, list[int]]]:
        """The next block's slots by the sessions that hold them, in random order: dims that were
        added later are in sessions of their own, so that what is prepared stays so."""
        parts, order = self._open(state), state.order()
        pieces = [(part, own) for part in parts if (own := part.order(order))]
        return self._draw.sample(pieces, len(pieces))

    def _level(self) -> None:
        """A level block: one dim of each curve at one number of tokens, in random order, up to
        :data:`.curve.BLOCK_MS`. None on a device that does without."""
        begun = time.monotonic()
        enough = self._levelling_s > LEVEL_SHARE * (begun - self._started)
        if not self._levels or (enough and self._levelled >= FEWEST_LEVEL_BLOCKS):
            return
        wanted = self._drawn()
        if len(wanted) < 2:
            return
        try:
            times = self._device.mixed([(held.session, own) for held, own in wanted])
        except WorkerLostError:  # a curve's own block will tell which slot it was
            self._sessions.clear()
            self._process += 1
            return
        self._levelling_s += time.monotonic() - begun
        self._levelled += 1
        self._levels = times is not None
        if times is not None and times.calls:
            placed = ((*wanted[timed.slot], timed) for timed in times.calls)
            calls = tuple(held.call(timed._replace(slot=own)) for held, own, timed in placed)
            self._sink.append(self._block(LEVEL, calls, [times]))

    def _drawn(self) -> list[tuple[OpenSlots, int]]:
        """What the next level block calls: one slot of each curve, by the session that holds it."""
        chosen: list[tuple[OpenSlots, int]] = []
        tokens, left_us = None, BLOCK_MS * 1e3
        states = [s for s in self._states if s.plan.key in self._sessions]
        for state in self._draw.sample(states, len(states)):
            holder = {i: part for part in self._sessions[state.plan.key] for i in part.places}
            places = [i for i in state.live if i in holder]
            if tokens is not None:
                places = [i for i in places if state.slots[i].point.tokens == tokens]
            if not places:
                continue
            left_us -= state.typical_us or 0.0
            if left_us < 0 and chosen:
                break
            place = self._draw.choice(places)
            tokens = state.slots[place].point.tokens
            chosen.append((holder[place], holder[place].order([place])[0]))
        return chosen

    def _look(self, state: CurveState, added: bool) -> None:
        """Judge the curve when that is due, and once a process after the first has ``added`` its
        share."""
        shared = state.blocks_in(self._process) >= state.share
        if added and shared and state.judged_in != self._process:
            state.judged_in = self._process
            state.look()
        elif state.due:
            state.look()

    def _block(self, axis: str, calls: tuple[Call, ...], times: Sequence[BlockTimes]) -> Block:
        """The next block of the run, of what was called one right after the other; the device's
        state is the last's."""
        last = times[-1]
        block = Block(
            self._next, self._process, axis, self._device.timer, calls, time.time(),
            next((each.throttled for each in times if each.throttled), ""),
            last.sm_clock_mhz, last.mem_clock_mhz, last.temperature_c, last.power_w,
        )  # fmt: skip
        self._next += 1
        self._blocks += 1
        self._calls += len(calls)
        return block

    def _open(self, state: CurveState) -> list[OpenSlots]:
        """The curve's sessions, with one opened now for slots that are in none. Slots that were
        given up are left out: they may have cost a process."""
        parts = self._sessions.setdefault(state.plan.key, [])
        held = {place for part in parts for place in part.places}
        fresh = [place for place in state.live if place not in held]
        if fresh:
            points = [state.slots[place].point for place in fresh]
            self._note([PointNote(point) for point in points])
            slots, reuse = [state.slots[place] for place in fresh], self._timing.reuse_mib << 20
            opened = OpenSlots(state, self._device.session(slots, reuse), fresh)
            parts.append(opened)
            self._fail(opened, opened.session.failed, for_good=True)
            named = {points[i]: names for i, names in opened.session.kernels().items()}
            remarks = {points[i]: text for i, text in opened.session.remarks().items()}
            state.kernels = {**state.kernels, **named}
            self._note(
                PointNote(p, named.get(p, ()), remark=remarks.get(p, ""))
                for p in {**named, **remarks}
            )
        return parts

    def _find_culprit(self, state: CurveState, why: str) -> None:
        """A block killed the worker: call its slots one by one, and leave out one that does so
        again."""
        for place in state.live:
            slot = state.slots[place]
            try:
                session = self._device.session([slot], self._timing.reuse_mib << 20)
                if not session.failed:
                    session.block([0])
                session.close()
            except MeasurementError as error:
                state.fail(place, for_good=True)
                self._note([PointNote(slot.point, failed=first_line(error))])
                return
        # None does so alone: the machine was short of something, or it takes all of them.
        state.losses += 1
        if state.losses >= GIVE_UP:
            for place in state.callable_slots:
                state.fail(place, for_good=True)
                self._note([PointNote(state.slots[place].point, failed=why)])

    def _fail(self, held: OpenSlots, failed: Mapping[int, str], for_good: bool = False) -> None:
        """Slots of a session that raised, or could not be prepared at all."""
        for own, why in failed.items():
            held.state.fail(held.places[own], for_good=for_good)
            self._note([PointNote(held.state.slots[held.places[own]].point, failed=why)])

    def _note(self, notes: Iterable[PointNote]) -> None:
        """Keep what is new. Blocks of the journal refer to points by the ids noted before."""
        fresh = []
        for note in notes:
            known = self._noted.get(note.point)
            if known is None or any(
                getattr(note, name) not in ("", (), getattr(known, name))
                for name in ("kernels", "failed", "remark")
            ):
                self._noted[note.point] = note
                fresh.append(note)
        self._sink.note(fresh)

    def _renew(self) -> None:
        for part in chain.from_iterable(self._sessions.values()):
            part.session.close()
        self._sessions.clear()
        self._levelled = 0
        self._device.renew()

    def progress(self) -> tuple[float, float]:
        """Blocks, or seconds where there is a budget: done, and as many as are likely in all."""
        done, left = sum(s.blocks for s in self._states), sum(s.blocks_left for s in self._states)
        if self._budget_s is None:
            return done, done + left
        seconds = min(time.monotonic() - self._started, self._budget_s)
        here = done - self._replayed
        likely = seconds * (1 + left / here) if here else self._budget_s
        return seconds, min(likely, self._budget_s)

    def summary(self, folder: Path) -> RunSummary:
        return RunSummary(
            folder,
            len(self._states),
            len(self._measured),
            self._blocks,
            self._calls,
            sum(bool(n.failed) and p not in self._measured for p, n in self._noted.items()),
            time.monotonic() - self._started,
            sum(state.undecided for state in self._states),
            sum(not s.finished for s in self._states),
        )

    @property
    def _measured(self) -> set[Point]:
        return {
            slot.point
            for state in self._states
            for slot, count in zip(state.slots, state.counts, strict=True)
            if count
        }

    def outcomes(self) -> dict[str, CurveOutcome]:
        """By curve, how its sweep ended."""
        return {s.plan.key: CurveOutcome(s.undecided, not s.finished) for s in self._states}
