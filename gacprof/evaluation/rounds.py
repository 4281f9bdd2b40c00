"""The measuring loop of a bench: rounds of blocks, every order drawn anew.

A block calls every model once at one workload, side by side in time, so that whatever the
machine does meanwhile hits all models alike. A round holds one block of each prefill and as many
of a decode step as steps are asked for. The order of the workloads, and of the models within
each block, is drawn anew every time. Any rows of runners can be measured; tests pass recorded
ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from gacprof.core.fit import FEWEST_BLOCKS, Floats
from gacprof.devices.threads import no_collection
from gacprof.evaluation.comparison import looks
from gacprof.evaluation.workloads import Clock, Taken, Workload

ATTEMPTS = 3
"""Calls in a round's place while the system takes cores from them, the first included."""
REST_S = 0.003
"""Before a retake: one slice of Linux's scheduler, so that this process has not used up its."""
MOST_DISTURBED = 0.5
"""Of a round's calls. Where more are preempted the machine is busy throughout, and retakes would
be disturbed too; the round is kept as it is, since its blocks were disturbed all alike."""
WARM_UP_ROUNDS = 2
FEWEST_ROUNDS = FEWEST_BLOCKS
"""Measured whatever the time cap: fewer give no spread."""

Progress = Callable[[int, int, str], None]
"""Told (calls done, calls at most, what is timed next)."""


class Timed(Protocol):
    def time(self, clock: Clock) -> Taken: ...


@dataclass
class Table:
    """The timings of one workload: rows are blocks, columns models."""

    rows: list[list[Taken]] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)

    @property
    def us(self) -> Floats:
        return np.array([[taken.us for taken in row] for row in self.rows])

    @property
    def disturbed(self) -> int:
        """Timings that were preempted in every attempt."""
        return sum(taken.preempted > 0 for row in self.rows for taken in row)

    @property
    def contended(self) -> bool:
        """Whether most timings were preempted: calls then last as long as the scheduler's slices
        make them, whatever their size, and look alike."""
        return self.disturbed > MOST_DISTURBED * sum(len(row) for row in self.rows)


@dataclass(frozen=True)
class Limits:
    """``most_rounds`` at most; none begins after ``time_cap_s``, once there are four."""

    most_rounds: int
    time_cap_s: float | None = None


class Rounds:
    """Takes timings of ``runners`` [workload][model] into :attr:`tables`, one a workload."""

    def __init__(
        self,
        workloads: Sequence[Workload],
        runners: Sequence[Sequence[Timed]],
        clock: Clock,
        progress: Progress | None = None,
        seed: int = 0,
    ) -> None:
        self.tables = [Table() for _ in workloads]
        self.count = 0
        self._workloads, self._runners, self._clock = workloads, runners, clock
        self._progress = progress or (lambda done, total, what: None)
        self._draw = np.random.default_rng(seed)
        self._done, self._total = 0, 0

    def run(self, limits: Limits, decided: Callable[[], bool]) -> None:
        """Measure until ``decided`` says so at a look (12, 24, 48 … rounds) or a limit is met."""
        began = time.monotonic()
        few = sum(len(r) for r in self._runners)
        self._total = WARM_UP_ROUNDS * few + limits.most_rounds * self._calls
        with no_collection():
            for _ in range(WARM_UP_ROUNDS):
                for number in self._blocks(once=True):
                    self._block(number)
            while self.count < limits.most_rounds:
                late = limits.time_cap_s is not None and (
                    time.monotonic() - began > limits.time_cap_s
                )
                if late and self.count >= FEWEST_ROUNDS:
                    break
                self._round()
                if self.count in looks(limits.most_rounds) and decided():
                    break
        self._progress(self._total, self._total, "")

    @property
    def _calls(self) -> int:
        """In one round."""
        return sum(w.calls * len(r) for w, r in zip(self._workloads, self._runners, strict=True))

    def _round(self) -> None:
        began = time.monotonic()
        todo: list[tuple[int, list[Taken], int]] = []
        for number in self._blocks():
            row = self._block(number)
            self.tables[number].rows.append(row)
            self.tables[number].rounds.append(self.count)
            todo += [(number, row, m) for m, taken in enumerate(row) if taken.preempted]
        self._retake(todo, until=2 * time.monotonic() - began)
        self.count += 1

    def _blocks(self, once: bool = False) -> Iterator[int]:
        """The workload of each block of one round. Blocks of a workload follow each other,
        so that a decode step finds in the processor's caches what decoding leaves there."""
        for number in self._draw.permutation(len(self._workloads)):
            for _ in range(1 if once else self._workloads[number].calls):
                yield int(number)

    def _block(self, number: int) -> list[Taken]:
        runners, found = self._runners[number], {}
        for m in self._draw.permutation(len(runners)):
            self._progress(self._done, self._total, self._workloads[number].name)
            found[int(m)] = runners[m].time(self._clock)
            self._done += 1
        return [found[m] for m in range(len(runners))]

    def _retake(self, todo: list[tuple[int, list[Taken], int]], until: float) -> None:
        """Time preempted calls (workload, row, model) again, for no longer than the round took.
        The least preempted timing is kept: by that count, never by the time itself."""
        if len(todo) > MOST_DISTURBED * self._calls:
            return
        for _ in range(ATTEMPTS - 1):
            for number, row, m in todo:
                if time.monotonic() > until:
                    return
                time.sleep(REST_S)
                self._clock.wake()
                again = self._runners[number][m].time(self._clock)
                row[m] = min(row[m], again, key=lambda taken: taken.preempted)
            todo = [(number, row, m) for number, row, m in todo if row[m].preempted]
