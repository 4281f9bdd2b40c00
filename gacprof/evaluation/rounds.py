"""The measuring loop of a bench: rounds of blocks, every order drawn anew.

A block calls every model once at one workload, side by side in time, so that whatever the
machine does meanwhile hits all models alike. A round holds one block of each prefill and as many
of a decode step as steps are asked for. The order of the workloads, and of the models within
each block, is drawn anew every time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from gacprof.core import Progress
from gacprof.core.fit import FEWEST_BLOCKS, Floats
from gacprof.core.tasks import no_collection
from gacprof.evaluation.comparison import looks
from gacprof.evaluation.workloads import BenchWorkload, CallTime, Clock, Runner

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


@dataclass
class WorkloadTimes:
    """The timings of one workload: rows are blocks, columns models."""

    rows: list[list[CallTime]] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)

    @property
    def us(self) -> Floats:
        return np.array([[call.us for call in row] for row in self.rows])

    @property
    def disturbed(self) -> int:
        """Timings that were disturbed in every attempt."""
        return sum(call.disturbed for row in self.rows for call in row)

    @property
    def contended(self) -> bool:
        """Whether most timings were disturbed: calls then last as long as the scheduler's slices
        make them, whatever their size, and look alike."""
        return self.disturbed > MOST_DISTURBED * sum(len(row) for row in self.rows)


class Rounds:
    """Takes timings of ``runners`` [workload][model] into :attr:`tables`, one a workload.

    ``most`` rounds are measured at most; none begins after ``time_cap_s``, once there are four.
    """

    def __init__(
        self,
        workloads: Sequence[BenchWorkload],
        runners: Sequence[Sequence[Runner]],
        clock: Clock,
        most: int,
        time_cap_s: float | None = None,
        progress: Progress | None = None,
        seed: int = 0,
    ) -> None:
        self.tables = [WorkloadTimes() for _ in workloads]
        self.count, self.most = 0, most
        self._workloads, self._runners, self._clock = workloads, runners, clock
        self._time_cap_s = time_cap_s
        self._progress = progress or (lambda done, total, what: None)
        self._draw = np.random.default_rng(seed)
        self._calls = sum(w.calls * len(r) for w, r in zip(workloads, runners, strict=True))
        self._done = 0
        self._total = WARM_UP_ROUNDS * sum(map(len, runners)) + most * self._calls

    def run(self, decided: Callable[[], bool]) -> None:
        """Measure until ``decided`` says so at a look (12, 24, 48 … rounds) or a limit is met."""
        began = time.monotonic()
        with no_collection():
            for _ in range(WARM_UP_ROUNDS):
                for number in self._blocks(once=True):
                    self._block(number)
            while self.count < self.most:
                cap, spent = self._time_cap_s, time.monotonic() - began
                if cap is not None and spent > cap and self.count >= FEWEST_ROUNDS:
                    break
                self._round()
                if self.count in looks(self.most) and decided():
                    break
        self._progress(self._total, self._total, "")

    def _round(self) -> None:
        began = time.monotonic()
        disturbed: list[tuple[int, list[CallTime], int]] = []
        for number in self._blocks():
            row = self._block(number)
            self.tables[number].rows.append(row)
            self.tables[number].rounds.append(self.count)
            disturbed += [(number, row, m) for m, call in enumerate(row) if call.disturbed]
        self._retake(disturbed, until=2 * time.monotonic() - began)
        self.count += 1

    def _blocks(self, once: bool = False) -> Iterator[int]:
        """The workload of each block of one round. Blocks of a workload follow each other,
        so that a decode step finds in the processor's caches what decoding leaves there."""
        for number in self._draw.permutation(len(self._workloads)):
            for _ in range(1 if once else self._workloads[number].calls):
                yield int(number)

    def _block(self, number: int) -> list[CallTime]:
        runners, found = self._runners[number], {}
        for m in self._draw.permutation(len(runners)):
            self._progress(self._done, self._total, self._workloads[number].name)
            found[int(m)] = runners[m].time(self._clock)
            self._done += 1
        return [found[m] for m in range(len(runners))]

    def _retake(self, disturbed: list[tuple[int, list[CallTime], int]], until: float) -> None:
        """Time disturbed calls (workload, row, model) again, for no longer than the round took.
        The least preempted timing is kept: by that count, never by the time itself."""
        if len(disturbed) > MOST_DISTURBED * self._calls:
            return
        for _ in range(ATTEMPTS - 1):
            for number, row, m in disturbed:
                if time.monotonic() > until:
                    return
                time.sleep(REST_S)
                self._clock.wake()
                again = self._runners[number][m].time(self._clock)
                row[m] = min(row[m], again, key=lambda call: call.preempted)
            disturbed = [(n, row, m) for n, row, m in disturbed if row[m].disturbed]
