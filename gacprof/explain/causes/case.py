"""One question about a curve: this dim against that one, and what is known of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from gacprof.core.points import Point
from gacprof.explain.causes.value import Cause, Where
from gacprof.kernels.names import Group, attach
from gacprof.kernels.ncu import KernelCounters

if TYPE_CHECKING:
    from gacprof.cliffmap.schema import Curve

Counters = Mapping[int, Sequence[KernelCounters]]


@dataclass(frozen=True)
class Case:
    curve: Curve
    d: int
    reference: int
    where: Where
    counters: Counters = field(default_factory=dict)

    @cached_property
    def latency(self) -> dict[int, float]:
        """Dim → median in µs, measured dims only."""
        return dict(zip(self.curve.points.d, self.curve.points.median_us, strict=True))

    @cached_property
    def _kernels(self) -> dict[int, list[str]]:
        columns = self.curve.points
        return {
            d: self.curve.kernels[index]
            for d, index in zip(columns.d, columns.kernels, strict=False)
            if index is not None
        }

    def kernels(self, d: int) -> list[str]:
        """Names of the kernels that ran at ``d``; empty where none were recorded."""
        return self._kernels.get(d, [])

    def mechanism(self, d: int) -> str | None:
        """What the map says serves ``d``; on a CPU, what its library reported."""
        column = self.curve.points.mechanism
        index = column[self.curve.points.d.index(d)] if column else None
        return None if index is None else self.curve.mechanisms[index]

    def groups(self, d: int) -> list[Group]:
        return attach(self.kernels(d))

    def point(self, d: int) -> Point:
        dims = self.curve.fixed | {self.curve.axis: d}
        return Point.of(self.curve.operator, dims, self.curve.dtype, self.curve.flags)

    def next_multiple(self, d: int, of: int) -> int | None:
        """The smallest measured multiple of ``of`` that is not below ``d``."""
        return next((x for x in sorted(self.latency) if x >= d and x % of == 0), None)


class Path:
    """A walk from the dim in question to its reference; every step is a cause.

    ``at`` is where it has got to. A step to a dim that was not measured is kept as a cause
    without share, and the walk stays where it is. Where the reference has a handicap of its
    own, the walk leads to a ``goal`` without it first, and ``finish`` takes the last step.
    """

    def __init__(self, case: Case, served_by: Sequence[str] = ()) -> None:
        self.case = case
        self.served_by = tuple(served_by)
        self.causes: list[Cause] = []
        self.at = case.d
        self.goal = case.reference
        self._last: tuple[str, str, Sequence[str], str] | None = None

    def step(
        self, kind: str, to: int, sentence: str, evidence: Sequence[str], basis: str = "measured"
    ) -> Path:
        latency = self.case.latency
        share, cited = None, list(evidence)
        if to in latency:
            share = (latency[self.at] - latency[to]) / latency[self.case.d]
            cited.append(f"latency at {self.at} and {to}")
            self.at = to
        self.causes.append(Cause(kind, share, sentence, tuple(cited), basis))
        return self

    def lead_to(
        self, goal: int | None, kind: str, sentence: str, evidence: Sequence[str], basis: str
    ) -> None:
        """Walk to ``goal``, which lacks a handicap of the reference, before the last step."""
        if goal in self.case.latency and goal is not None:
            self.goal = goal
            self._last = kind, sentence, evidence, basis

    def finish(self) -> None:
        """Take the last step, from the goal to the reference."""
        if self._last is not None and self.at == self.goal != self.case.reference:
            kind, sentence, evidence, basis = self._last
            self.step(kind, self.case.reference, sentence, evidence, basis)
