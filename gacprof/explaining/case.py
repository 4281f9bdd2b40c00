"""One question about a curve (this dim against that one), and the chain of causes between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

from gacprof.cliffmap import CliffMap
from gacprof.cliffmap.schema import Curve, MapFile
from gacprof.core.files import Record
from gacprof.core.formatting import microseconds, percent
from gacprof.core.points import Environment, Point
from gacprof.kernels.evidence import KernelCounters
from gacprof.kernels.names import Kernel, KernelGroup, attach

Counters = Mapping[int, Sequence[KernelCounters]]
"""Kernel launches by dim, where Nsight Compute was run."""


@dataclass(frozen=True)
class Cause:
    """One reason for a difference between two dims.

    ``kind`` is one of

    - ``backend`` (another SDPA backend serves), ``padding`` (operands are copied to a larger
      size and the result is sliced), ``template`` (a larger FlashAttention template, or one
      that is not filled), ``alignment`` (rows too short of alignment for the fastest kernels);
    - ``residue`` (measured to go with the dim's residue; the mechanism was not recorded),
      ``kernel_switch``, ``tile_quantisation`` (one more tile for the last few elements);
    - seen by counters: ``wave_quantisation``, ``load_width``, ``l2_sectors``, ``launch_bound``;
    - ``unexplained``.

    ``share`` is the fraction of the dim's latency that the cause accounts for (negative where
    it saves time), None where it cannot be computed. ``basis`` is ``measured`` (kernel names,
    counters, latencies) or ``rules``. ``evidence`` cites what the cause rests on.
    """

    kind: str
    share: float | None
    sentence: str
    evidence: tuple[str, ...]
    basis: str = "measured"


@dataclass(frozen=True)
class Where:
    """Device and stack that a curve holds for, as far as its map names them."""

    arch: str | None = None
    torch: str | None = None
    cudnn: int | None = None

    @classmethod
    def of_map(cls, file: MapFile) -> Where:
        return cls.of(CliffMap(file).environment)

    @classmethod
    def of(cls, environment: Environment) -> Where:
        cudnn = environment.stack.get("cudnn")
        return cls(
            arch=environment.arch if environment.kind == "cuda" else None,
            torch=environment.stack.get("torch"),
            cudnn=int(cudnn) if cudnn and cudnn.isdigit() else None,
        )


@dataclass(frozen=True)
class Explanation(Record):
    """Why ``d`` takes longer (or not) than ``reference``, on the curve named.

    ``served_by`` says what serves ``d``.
    """

    derived: ClassVar = ("excess", "headline", "reasons")

    curve: str
    operator: str
    axis: str
    d: int
    latency_us: float
    reference: int
    reference_us: float
    served_by: tuple[str, ...]
    causes: tuple[Cause, ...]

    @property
    def excess(self) -> float:
        """latency(d) / latency(reference) - 1."""
        return self.latency_us / self.reference_us - 1

    @property
    def headline(self) -> str:
        """What the dim costs beside the other, and what serves it, in a line."""
        takes = f"{self.axis} {self.d} takes {microseconds(self.latency_us)}"
        if self.d == self.reference:
            against = "no larger dim is faster"
        elif abs(self.excess) < 0.005:
            against = f"as fast as {self.reference}"
        else:
            excess = percent(self.excess, signed=True, decimals=0)
            against = f"{excess} over {self.reference} ({microseconds(self.reference_us)})"
        return ": ".join([f"{takes}, {against}", *filter(None, ["; ".join(self.served_by)])])

    @property
    def reasons(self) -> tuple[str, ...]:
        """The causes, a line each, largest share first."""
        shares = [percent(cause.share, decimals=0) for cause in self.causes]
        return tuple(
            f"{share} of these {microseconds(self.latency_us)}: {cause.sentence}"
            if share
            else cause.sentence
            for share, cause in zip(shares, self.causes, strict=True)
        )


def point_at(curve: Curve, d: int) -> Point:
    return Point.of(curve.operator, curve.fixed | {curve.axis: d}, curve.dtype, curve.flags)


def points_of(curve: Curve) -> list[Point]:
    """What was measured, as points, ascending in the dim."""
    return [point_at(curve, d) for d in curve.points.d]


def by_dim(curve: Curve, counters: Mapping[Point, Sequence[KernelCounters]]) -> Counters:
    """Those of the curve's points, by dim."""
    return {p.dim[curve.axis]: found for p in points_of(curve) if (found := counters.get(p))}


@dataclass(frozen=True)
class Case:
    """The dim ``d`` of a curve against ``reference``, and what is known of both."""

    curve: Curve
    d: int
    reference: int
    where: Where
    counters: Counters = field(default_factory=dict)

    @cached_property
    def latency(self) -> dict[int, float]:
        """Latency in microseconds by measured dim."""
        return self.curve.latencies

    def kernels(self, d: int) -> list[str]:
        """Names of the kernels that ran at ``d``; empty where none were recorded."""
        index = self._index(self.curve.points.kernels, d)
        return [] if index is None else self.curve.kernels[index]

    def mechanism(self, d: int) -> str | None:
        """What the map says serves ``d``; on a CPU, what its library reported."""
        index = self._index(self.curve.points.mechanism, d)
        return None if index is None else self.curve.mechanisms[index]

    def _index(self, column: Sequence[int | None], d: int) -> int | None:
        return column[self.curve.points.d.index(d)] if column else None

    def groups(self, d: int) -> list[KernelGroup]:
        return attach(self.kernels(d))

    def product(self, d: int) -> Kernel | None:
        """The matrix product's own kernel among what ran; None where none was recorded."""
        roles = ("gemm", "gemv")
        return next((group.main for group in self.groups(d) if group.main.role in roles), None)

    def next_multiple(self, d: int, of: int) -> int | None:
        """The smallest measured multiple of ``of`` that is not below ``d``."""
        return next((x for x in sorted(self.latency) if x >= d and x % of == 0), None)


class CauseChain:
    """The way from the dim in question to its reference; every step is a cause.

    ``at`` is the dim that has been reached. A step to a dim that was not measured is kept as a
    cause without share, and ``at`` stays. Where the reference has a handicap of its own, the
    chain leads to a ``goal`` without it first, and :meth:`last_step` goes on to the reference.
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
    ) -> CauseChain:
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
        """Make ``goal``, which lacks a handicap of the reference, the last stop before it."""
        if goal is not None and goal in self.case.latency:
            self.goal = goal
            self._last = kind, sentence, evidence, basis

    def last_step(self) -> None:
        if self._last is not None and self.at == self.goal != self.case.reference:
            kind, sentence, evidence, basis = self._last
            self.step(kind, self.case.reference, sentence, evidence, basis)
