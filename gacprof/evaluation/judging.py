"""From the rounds of a bench to its timings, verdicts and notes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import expm1
from typing import cast

import torch

from gacprof.evaluation import comparison
from gacprof.evaluation.bench_result import Replicate, Timing, Verdict
from gacprof.evaluation.busy import ENOUGH
from gacprof.evaluation.comparison import FIRST_LOOK, Estimate, Ratio
from gacprof.evaluation.rounds import Limits, Rounds
from gacprof.evaluation.subject import multiplies
from gacprof.evaluation.workloads import Workload

REPLICATE = -1
"""The column of the A/A replicate."""


@dataclass
class Judged:
    """The rounds of one bench and what they tell so far. Columns of a table are the models, the
    reference first, and last its A/A replicate. ``busy`` is the share of a decode step that a GPU
    computed, by model."""

    names: Sequence[str]
    workloads: Sequence[Workload]
    identical: Sequence[bool]
    """By model: the same bytes as the reference, which counts as itself."""
    limits: Limits
    rounds: Rounds
    busy: dict[str, float] = field(default_factory=dict)
    _fitted: tuple[int, list[Estimate]] = (0, [])

    def decided(self) -> bool:
        """Whether every verdict is; without any, whether the replicates agree closely enough."""
        for estimate, table in zip(self._estimates(), self.rounds.tables, strict=True):
            replicate = self._ratio(estimate, REPLICATE)
            compared = [m for m, same in enumerate(self.identical) if not same]
            ratios = [self._ratio(estimate, m) for m in compared] or [replicate]
            if not all(comparison.decided(r, replicate, table.contended) for r in ratios):
                return False
        return True

    def timings(self) -> tuple[Timing, ...]:
        return tuple(
            self._timing(w, m) for w in range(len(self.workloads)) for m in range(len(self.names))
        )

    def replicates(self) -> tuple[Replicate, ...]:
        return tuple(self._replicate(w) for w in range(len(self.workloads)))

    def notes(self) -> Iterator[str]:
        """What happened while it was timed."""
        tables = self.rounds.tables
        disturbed = sum(table.disturbed for table in tables)
        if disturbed:
            yield (
                f"{disturbed} of {sum(table.us.size for table in tables)} timings were preempted "
                "by other processes: the machine is busy, and differences hide in that"
            )
        if self._host_bound:
            told = ", ".join(f"{name} {share:.0%}" for name, share in self.busy.items())
            yield f"the GPU computes for a part of a decode step only ({told}): the host limits it"
        if self.rounds.count < FIRST_LOOK:
            yield f"the time cap was reached after {self.rounds.count} rounds, a verdict takes 12"
        elif self.rounds.count < self.limits.most_rounds and not self.decided():
            yield f"the time cap was reached after {self.rounds.count} rounds"

    def _estimates(self) -> list[Estimate]:
        if self._fitted[0] != self.rounds.count:
            found = [comparison.estimate(t.us, t.rounds) for t in self.rounds.tables]
            self._fitted = self.rounds.count, found
        return self._fitted[1]

    def _ratio(self, estimate: Estimate, column: int) -> Ratio:
        """Against the reference: a model's at the level that all verdicts together leave to one,
        the replicate's at the plain level, since nothing is claimed of it."""
        verdicts = len(self.workloads) * list(self.identical).count(False)
        shared = comparison.level_of_one(verdicts, self.limits.most_rounds)
        level = comparison.LEVEL if column == REPLICATE else shared
        half = comparison.half_width(estimate.error[column], estimate.rounds, level)
        return Ratio(float(estimate.log_ratio[column]), half)

    @property
    def _host_bound(self) -> bool:
        return any(share < ENOUGH for share in self.busy.values())

    def _verdict(self, w: int, m: int) -> Verdict:
        if m == 0:
            return "reference"
        if self.identical[m]:
            return "identical"
        estimate = self._estimates()[w]
        host_bound = self.workloads[w].kind == "decode" and self._host_bound
        if estimate.rounds < FIRST_LOOK or host_bound:
            return "undecided"
        ratios = self._ratio(estimate, m), self._ratio(estimate, REPLICATE)
        found = comparison.verdict(*ratios)
        if found == comparison.NOTHING and self.rounds.tables[w].contended:
            return "undecided"
        return cast(Verdict, found)

    def _timing(self, w: int, m: int) -> Timing:
        workload, estimate = self.workloads[w], self._estimates()[w]
        return Timing(
            model=self.names[m],
            workload=workload.name,
            kind=workload.kind,
            tokens=workload.tokens,
            low_us=float(estimate.low_us[m]),
            latency_us=float(estimate.latency_us[m]),
            high_us=float(estimate.high_us[m]),
            timings_us=tuple(self.rounds.tables[w].us[:, m].tolist()),
            verdict=self._verdict(w, m),
            ratio=self._ratio(estimate, m).as_ratio() if m else None,
        )

    def _replicate(self, w: int) -> Replicate:
        ratio = self._ratio(self._estimates()[w], REPLICATE)
        raw = tuple(self.rounds.tables[w].us[:, REPLICATE].tolist())
        return Replicate(self.workloads[w].name, ratio.as_ratio(), expm1(ratio.reach), raw)


def conditions(device: torch.device, dtype: torch.dtype, bound: bool, shared: str) -> Iterator[str]:
    """What was not as it should be before anything was timed. ``shared``: why the A/A replicate
    has no weights of its own."""
    if shared:
        yield (
            f"the A/A replicate is the same object as the reference ({shared}): what different "
            "addresses do to the time does not show in the A/A spread"
        )
    if device.type == "cpu" and not bound:
        yield "compute threads could not be bound to cores: timings scatter more on a busy machine"
    if not multiplies(dtype, device):
        short = str(dtype).removeprefix("torch.")
        yield f"this CPU has no instructions for products in {short}: it would hardly be run so"
