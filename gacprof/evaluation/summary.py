"""What a bench found, round by round: timings with verdicts, the A/A replicates, and notes.

A block calls every model once at one workload, side by side in time, so that whatever the
machine does meanwhile hits all models alike. A round holds one block of each prefill and as many
of a decode step as steps are asked for. The order of the workloads, and of the models within
each block, is drawn anew every time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from math import expm1
from typing import Any, Literal

import numpy as np
import torch

from gacprof.core import Progress
from gacprof.core.formatting import Framed
from gacprof.core.points import Environment
from gacprof.core.tasks import no_collection
from gacprof.devices.threads import disturbed
from gacprof.evaluation.comparison import (
    FAMILYWISE_LEVEL,
    Difference,
    Ratio,
    WorkloadFit,
    decided,
    difference,
    fit_workload,
    half_width,
    level_of_one,
    looks,
)
from gacprof.evaluation.request import FIRST_LOOK
from gacprof.evaluation.workloads import BenchWorkload, CallTime, Clock, Runner
from gacprof.stats.fit import FEWEST_BLOCKS, Floats

MOST_DISTURBED = 0.5
"""Of a workload's timings. Where more are disturbed the machine is busy throughout."""
WARM_UP_ROUNDS = 2
SEED = 0
FEWEST_ROUNDS = FEWEST_BLOCKS
"""Measured whatever the time cap: fewer give no spread."""


@dataclass
class WorkloadTimes:
    """The timings of one workload: a row is a block, by model; ``rounds`` are by block."""

    rows: list[list[CallTime]] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)

    @property
    def us(self) -> Floats:
        """Microseconds [blocks, models]."""
        return np.array([[call.us for call in row] for row in self.rows])

    @property
    def disturbed(self) -> int:
        """Timings that were disturbed. They are kept: taken again they would belong to no block
        (docs/evaluating.md)."""
        return sum(
            sum(disturbed([call.us for call in row], [call.waited_us for call in row]))
            for row in self.rows
        )

    @property
    def contended(self) -> bool:
        """Whether most timings were disturbed: calls then last as long as the scheduler's slices
        make them, whatever their size, and look alike."""
        return self.disturbed > MOST_DISTURBED * sum(len(row) for row in self.rows)


@dataclass
class Rounds:
    """Takes timings of ``runners`` [workload][model] into :attr:`tables`, one a workload.

    ``anew`` is called before every round. ``most`` rounds are measured at most; none begins after
    ``time_cap_s``, once there are four. :attr:`early` says that it is, or was ended at, a look
    before that.
    """

    workloads: Sequence[BenchWorkload]
    runners: Sequence[Sequence[Runner]]
    clock: Clock
    most: int
    time_cap_s: float | None = None
    progress: Progress | None = None
    anew: Callable[[], None] = lambda: None
    count: int = 0
    early: bool = False

    def __post_init__(self) -> None:
        self.tables = [WorkloadTimes() for _ in self.workloads]
        self._draw, self._done, self._began = np.random.default_rng(SEED), 0, 0.0
        each = zip(self.workloads, self.runners, strict=True)
        self._total = self.most * sum(w.calls * len(r) for w, r in each)
        self._total += WARM_UP_ROUNDS * sum(map(len, self.runners))

    def run(self, decided: Callable[[], bool]) -> None:
        """Measure until ``decided`` says so at a look (12, 24, 48 … rounds) or a limit is met."""
        self._began = time.monotonic()
        with no_collection(), torch.inference_mode():
            self._warm_up()
            self.early = True
            while True:
                cap, spent = self.time_cap_s, time.monotonic() - self._began
                capped = cap is not None and spent > cap and self.count >= FEWEST_ROUNDS
                if capped or self.count == self.most:
                    self.early = False
                    break
                self._round()
                if self.count in looks(self.most)[:-1] and decided():
                    break
        self._advance(self._total)

    def _warm_up(self) -> None:
        for _ in range(WARM_UP_ROUNDS):
            for number in self._blocks(once=True):
                self._block(number)

    def _round(self) -> None:
        self.anew()
        for number in self._blocks():
            self.tables[number].rows.append(self._block(number))
            self.tables[number].rounds.append(self.count)
        self.count += 1

    def _blocks(self, once: bool = False) -> Iterator[int]:
        """The workload of each block of one round. Blocks of a workload follow each other,
        so that a decode step finds in the processor's caches what decoding leaves there."""
        for number in self._draw.permutation(len(self.workloads)):
            for _ in range(1 if once else self.workloads[number].calls):
                yield int(number)

    def _block(self, number: int) -> list[CallTime]:
        """Call all models once."""
        runners = self.runners[number]
        row = [CallTime(0.0)] * len(runners)
        for m in self._draw.permutation(len(runners)):
            self._advance(self._done, self.workloads[number].name)
            row[m] = runners[m].time(self.clock)
            self._done += 1
        return row

    def _advance(self, done: int, what: str = "") -> None:
        """By rounds or by time, whichever is nearer to its end."""
        if self.progress is None:
            return
        share = done / max(1, self._total)
        if self.time_cap_s:
            spent = (time.monotonic() - self._began) / self.time_cap_s
            share = max(share, min(1.0, spent))
        self.progress(share * self._total, self._total, what)


BenchVerdict = Difference | Literal["reference", "identical", "undecided"]

REPLICATE = -1
"""The column of the A/A replicate."""
ENOUGH = 0.9
"""Where a GPU computes for a smaller share of a decode step, no verdict is given."""


@dataclass(frozen=True)
class ModelTiming:
    """One model at one workload. Microseconds: of a prefill, of one decode step.

    ``latency_us`` is fitted (:mod:`gacprof.evaluation.comparison`), with its 95 % interval from
    ``low_us`` to ``high_us``. ``timings_us`` are the raw timings, the same number from each round
    in order. ``ratio`` is (low, ratio, high) of this model's time over the reference's, the
    replicate's calls among them; below 1 is faster. Its interval is simultaneous: 95 % for all
    verdicts of the bench together. None for the reference itself.
    """

    model: str
    workload: str
    kind: Literal["prefill", "decode"]
    tokens: int
    low_us: float
    latency_us: float
    high_us: float
    timings_us: tuple[float, ...]
    verdict: BenchVerdict
    ratio: tuple[float, float, float] | None = None


@dataclass(frozen=True)
class Replicate:
    """The reference against itself at one workload: the bench's own A/A comparison.

    ``ratio`` is as a :class:`ModelTiming`'s, with its own 95 % interval. ``spread`` is the largest
    difference that the interval allows, as a share: none up to that is claimed of any model.
    """

    workload: str
    ratio: tuple[float, float, float]
    spread: float
    timings_us: tuple[float, ...]


@dataclass(frozen=True)
class BenchResult(Framed):
    """All timings, raw ones kept. ``models`` are names, told apart, the reference first;
    ``sources`` the paths behind them; ``parameters`` are in the same order. ``busy`` is the share
    of a decode step that a GPU computed, by model, where a profiler could tell. ``engine`` is the
    serving engine with its version; empty where the models ran as modules in this process."""

    models: tuple[str, ...]
    parameters: tuple[int, ...]
    dtype: str
    batch: int
    decode_steps: int
    rounds: int
    timings: tuple[ModelTiming, ...]
    replicates: tuple[Replicate, ...]
    environment: Environment
    timer: str
    threads_bound: bool = False
    busy: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    engine: str = ""

    def frame_rows(self) -> Iterator[dict[str, Any]]:
        for timing in self.timings:
            low, middle, high = timing.ratio or (None, None, None)
            yield {
                "workload": timing.workload,
                "model": timing.model,
                "latency_us": timing.latency_us,
                "ratio": middle,
                "ratio_low": low,
                "ratio_high": high,
                "verdict": timing.verdict,
            }

    def frame_title(self) -> str:
        return (
            f"{self.environment.name}, {self.dtype}, batch {self.batch}, {self.rounds} rounds; "
            f"ratios are to {self.models[0]}"
        )

    def of(self, model: str, workload: str) -> ModelTiming:
        """The timing of a model at ``prefill 128``, ``decode 128`` … Raises ``KeyError``."""
        for timing in self.timings:
            if (timing.model, timing.workload) == (model, workload):
                return timing
        raise KeyError((model, workload))

    @property
    def spread(self) -> float:
        """The largest A/A spread of any workload."""
        return max(replicate.spread for replicate in self.replicates)

    def tokens_per_s(self, timing: ModelTiming) -> tuple[float, float, float]:
        """(low, middle, high) tokens of all sequences a second, with the latency's interval."""
        tokens = self.batch * (timing.tokens if timing.kind == "prefill" else 1)
        low, middle, high = (
            tokens / us * 1e6 for us in (timing.high_us, timing.latency_us, timing.low_us)
        )
        return low, middle, high

    def as_dict(self) -> dict[str, Any]:
        timings = [asdict(t) | {"tokens_per_s": self.tokens_per_s(t)} for t in self.timings]
        return asdict(self) | {"timings": timings, "environment": self.environment.as_dict()}


@dataclass
class BenchSummary:
    """The rounds of one bench and what they show so far. Columns of a table are the models, the
    reference first, and last its A/A replicate. ``busy`` is the share of a decode step that a GPU
    computed, by model; ``launched`` are models whose decode steps no CUDA graph holds, and why."""

    names: Sequence[str]
    workloads: Sequence[BenchWorkload]
    identical: Sequence[bool]
    """By model: the same bytes as the reference, which counts as itself."""
    rounds: Rounds
    busy: dict[str, float] = field(default_factory=dict)
    launched: dict[str, str] = field(default_factory=dict)
    _fitted: tuple[int, list[WorkloadFit]] = (0, [])

    def decided(self) -> bool:
        """Whether every verdict is; without any, whether the replicates agree closely enough."""
        compared = [m for m, same in enumerate(self.identical) if not same] or [REPLICATE]
        return all(
            decided(self._ratio(w, m), self._ratio(w, REPLICATE), table.contended)
            for w, table in enumerate(self.rounds.tables)
            for m in compared
        )

    def timings(self) -> tuple[ModelTiming, ...]:
        return tuple(
            self._timing(w, m) for w in range(len(self.workloads)) for m in range(len(self.names))
        )

    def replicates(self) -> tuple[Replicate, ...]:
        found = []
        for w, workload in enumerate(self.workloads):
            ratio, raw = self._ratio(w, REPLICATE), self.rounds.tables[w].us[:, REPLICATE]
            spread = expm1(ratio.reach)
            found.append(Replicate(workload.name, ratio.as_ratio(), spread, tuple(raw.tolist())))
        return tuple(found)

    def notes(self) -> Iterator[str]:
        """What happened while it was timed."""
        tables = self.rounds.tables
        disturbed = sum(table.disturbed for table in tables)
        if disturbed:
            timings = sum(table.us.size for table in tables)
            yield (
                f"during {disturbed} of {timings} timings other programs had a core that we "
                "waited for: the machine is busy, and differences hide in that"
            )
        for name, why_not in self.launched.items():
            step = f"a decode step of {name} is launched by the host"
            yield f"{step}, no CUDA graph holds it: {why_not}"
        if self._host_bound:
            shares = ", ".join(f"{name} {share:.0%}" for name, share in self.busy.items())
            part = f"for a part of a decode step only ({shares})"
            yield f"the GPU computes {part}: the host limits it"
        if self.rounds.count < FIRST_LOOK:
            yield f"the time cap was reached after {self.rounds.count} rounds, a verdict takes 12"
        elif self.rounds.count < self.rounds.most and not self.decided():
            yield f"the time cap was reached after {self.rounds.count} rounds"

    @property
    def _host_bound(self) -> bool:
        return any(share < ENOUGH for share in self.busy.values())

    def _fit(self, w: int) -> WorkloadFit:
        if self._fitted[0] != self.rounds.count:
            found = [
                fit_workload(table.us, table.rounds, replicate=True) for table in self.rounds.tables
            ]
            self._fitted = self.rounds.count, found
        return self._fitted[1][w]

    def _ratio(self, w: int, column: int) -> Ratio:
        """Against the reference: a model's at the level that all verdicts together leave to one,
        the replicate's at the plain level, since nothing is claimed of it."""
        fit = self._fit(w)
        verdicts, rounds = len(self.workloads) * list(self.identical).count(False), self.rounds
        own = level_of_one(verdicts, rounds.most, rounds.early)
        level = FAMILYWISE_LEVEL if column == REPLICATE else own
        half = half_width(fit.error[column], fit.rounds, level)
        return Ratio(float(fit.log_ratio[column]), half)

    def _verdict(self, w: int, m: int) -> BenchVerdict:
        if m == 0:
            return "reference"
        if self.identical[m]:
            return "identical"
        host_bound = self.workloads[w].kind == "decode" and self._host_bound
        if self.rounds.count < FIRST_LOOK or host_bound:
            return "undecided"
        found = difference(self._ratio(w, m), self._ratio(w, REPLICATE))
        if found == "no difference shown" and self.rounds.tables[w].contended:
            return "undecided"
        return found

    def _timing(self, w: int, m: int) -> ModelTiming:
        workload, fit = self.workloads[w], self._fit(w)
        return ModelTiming(
            model=self.names[m],
            workload=workload.name,
            kind=workload.kind,
            tokens=workload.tokens,
            low_us=float(fit.low_us[m]),
            latency_us=float(fit.latency_us[m]),
            high_us=float(fit.high_us[m]),
            timings_us=tuple(self.rounds.tables[w].us[:, m].tolist()),
            verdict=self._verdict(w, m),
            ratio=self._ratio(w, m).as_ratio() if m else None,
        )
