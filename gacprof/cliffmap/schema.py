"""The cliff map as a file: ``gacprof.cliffmap/3``.

Everything a map says about one swept axis stands in a :class:`Curve`; points are kept as
parallel columns, so that a map of tens of thousands of points stays small and loads fast.
Latencies are microseconds, dims are counts, floors and penalties are fractions (0.02 = 2 %).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from gacprof.core.formatting import Framed
from gacprof.core.points import Point
from gacprof.stats.findings import Check, Fraction, Noise, Period, Strict, Verdict, classes_of
from gacprof.stats.judge import comparable_dims

SCHEMA: Literal["gacprof.cliffmap/3"] = "gacprof.cliffmap/3"

Size = Annotated[int, Field(gt=0)]
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]


MOST_FLOOR = 0.1
"""Above this A/A floor the differences between dims are lost in those of one point."""
WIDE = 5
"""An undecided dim whose penalty is bounded within so many tolerances is nearly decided."""
MOST_WIDE = 0.5
"""The share of dims, undecided and wide, from which a map can judge little."""

KIND = "[a-z][a-z0-9_-]{0,31}"
"""What drives a device: ``cuda``, ``cpu``, ``recorded``, or another package's word."""


class Device(Strict):
    """The chip: ``arch`` is ``sm80``, ``sm90`` … or the CPU's instruction set."""

    kind: Annotated[str, Field(pattern=f"^{KIND}$")]
    name: str
    arch: str
    facts: dict[str, Any] = Field(default_factory=dict)


class Provenance(Strict):
    """How the map came about. A measured map names its stack; a published one its source."""

    kind: Literal["measured", "published"]
    created: str
    source: str = ""
    citation: str = ""
    licence: str = ""
    suite: str = ""
    suite_hash: str = ""
    stack: dict[str, str | None] = Field(default_factory=dict)
    notes: list[str] = Field(default_factory=list)


class Cliff(Strict):
    """An edge between two neighbouring measured dims where latency jumps.

    ``jump`` is latency(after) / latency(before) − 1, negative where the larger dim is
    faster. ``low`` and ``high`` bound it by the intervals of both latencies. Where the curve
    has a period, neighbours are taken within a residue class (``modulus``, ``remainders``):
    the jumps between classes are what the period says.
    """

    before: Size
    after: Size
    jump: float
    low: float
    high: float
    modulus: Size = 1
    remainders: list[int] = Field(default_factory=lambda: [0])
    cause: str | None = None


class Tier(Strict):
    """Dims served by the same mechanism, as one stretch of the axis: first to last.

    Where the tier holds only some residue classes, ``modulus`` and ``remainders`` say which.
    ``mechanism`` is the kernel or backend identity where it is known.
    """

    name: str
    first: Size
    last: Size
    modulus: Size = 1
    remainders: list[int] = Field(default_factory=lambda: [0])
    mechanism: str | None = None
    median_us: Positive | None = None

    def holds(self, d: int) -> bool:
        return self.first <= d <= self.last and d % self.modulus in self.remainders


class Points(Strict):
    """Parallel columns, ascending in ``d``, one entry a measured dim.

    ``latency_us`` is fitted by the two-way fit over the curve's blocks; ``low_us`` and
    ``high_us`` bound it beside the curve's other dims (95 %), null where the source gives none:
    Student's, with so many ``degrees`` of freedom (null for infinite; empty where all are, and in
    maps made before they were kept). ``count`` is its number of calls. ``penalty_low`` and
    ``penalty_high`` bound the penalty; a high bound is null where nothing comparable is larger.
    ``mechanism`` and ``kernels`` are empty or hold for each dim an index into the curve's lists of
    these names.
    """

    d: list[int]
    latency_us: list[float]
    low_us: list[float | None]
    high_us: list[float | None]
    count: list[int]
    penalty_low: list[float]
    penalty_high: list[float | None]
    degrees: list[Positive | None] = Field(default_factory=list)
    mechanism: list[int | None] = Field(default_factory=list)
    kernels: list[int | None] = Field(default_factory=list)

    @model_validator(mode="after")
    def _columns_agree(self) -> Points:
        n, lengths = len(self.d), {name: len(column) for name, column in self}
        optional = {lengths.pop(name) for name in ("degrees", "mechanism", "kernels")}
        if set(lengths.values()) != {n} or not optional <= {0, n}:
            raise ValueError("the columns of 'points' differ in length")
        if n < 2:
            raise ValueError(f"an axis needs two dims at least, this one has {n}")
        if self.d[0] <= 0:
            raise ValueError(f"the dim {self.d[0]} is not positive")
        for before, after in pairwise(self.d):
            if after == before:
                raise ValueError(f"d={after} is there twice")
            if after < before:
                raise ValueError(f"d={after} stands after d={before}: dims must ascend")
        for latency in zip(self.d, self.latency_us, self.low_us, self.high_us, strict=True):
            _check_latency(*latency)
        return self

    def freedom(self, place: int) -> float:
        """The degrees of freedom of a dim's error."""
        return (self.degrees and self.degrees[place]) or math.inf

    def place(self, d: int) -> int | None:
        """Where ``d`` stands in the columns; None where it was not measured."""
        found = bisect_left(self.d, d)
        return found if found < len(self.d) and self.d[found] == d else None


def _check_latency(d: int, latency: float, low: float | None, high: float | None) -> None:
    if not math.isfinite(latency) or latency <= 0:
        raise ValueError(f"the latency at d={d} is {latency}, not a positive number")
    # A bound that is NaN fails both comparisons, hence "not <=" rather than ">".
    if low is not None and not 0 < low <= latency:
        raise ValueError(f"low_us at d={d} is {low}, not between 0 and the latency {latency}")
    if high is not None and not latency <= high < math.inf:
        raise ValueError(f"high_us at d={d} is {high}, below the latency {latency} or no number")


class Coverage(Strict):
    """Which dims were asked for and which could not be measured, each with its reason.

    What dims above ``last_comparable`` and the ``not_comparable`` ones would be padded to was not
    measured
    (:func:`gacprof.stats.judge.comparable_dims`):
    their penalty is a lower bound, so they are never called safe.
    """

    first: Size
    last: Size
    measured: int
    last_comparable: Annotated[int, Field(ge=0)]
    not_comparable: list[Size] = Field(default_factory=list)
    failed: dict[int, str] = Field(default_factory=dict)

    def compares(self, d: int) -> bool:
        return d <= self.last_comparable and d not in self.not_comparable


class Curve(Strict, Framed):
    """One axis of one operator, everything else held fixed.

    ``floor`` is the relative difference of two neighbours up to which nothing is called a cliff:
    what noise can cause at a usual edge (the median), or what was assumed where there are none.
    ``throttled`` says why the device ran below its clock in all blocks that the curve is of.
    ``tolerance`` is the penalty up to which a dim is ``safe``; dims surely above it are
    ``misaligned``, all others undecided. ``mechanisms`` name what serves a dim (a tier);
    ``kernels`` are the kernels themselves, as the driver names them, in the order of launch.
    """

    operator: str
    axis: str
    fixed: dict[str, Size]
    dtype: str
    flags: dict[str, bool | int | str] = Field(default_factory=dict)
    timer: str
    throttled: str = ""
    points: Points
    mechanisms: list[str] = Field(default_factory=list)
    kernels: list[list[str]] = Field(default_factory=list)
    period: Period | None = None
    tiers: list[Tier] = Field(default_factory=list)
    cliffs: list[Cliff] = Field(default_factory=list)
    frontier: list[int] = Field(default_factory=list)
    safe: list[int] = Field(default_factory=list)
    misaligned: list[int] = Field(default_factory=list)
    floor: Fraction
    tolerance: Fraction
    coverage: Coverage

    @model_validator(mode="after")
    def _findings_lie_on_the_axis(self) -> Curve:
        dims = set(self.points.d)
        for where, listed in (
            ("frontier", self.frontier),
            ("safe", self.safe),
            ("cliffs", [d for cliff in self.cliffs for d in (cliff.before, cliff.after)]),
            ("misaligned", self.misaligned),
            ("tiers", [d for tier in self.tiers for d in (tier.first, tier.last)]),
        ):
            for d in listed:
                if d not in dims:
                    raise ValueError(f"'{where}' names {d}, which is not among the curve's points")
        for cliff in self.cliffs:
            if cliff.after <= cliff.before:
                raise ValueError(f"a cliff runs from {cliff.before} to {cliff.after}")
        both = set(self.safe) & set(self.misaligned)
        if both:
            raise ValueError(f"{min(both)} is called safe and misaligned")
        if self.axis in self.fixed:
            raise ValueError(f"the swept axis {self.axis} is also fixed")
        for where, column, named in (
            ("mechanism", self.points.mechanism, len(self.mechanisms)),
            ("kernels", self.points.kernels, len(self.kernels)),
        ):
            for index in column:
                if index is not None and not 0 <= index < named:
                    raise ValueError(f"'{where}' {index} is not among the {named} that are named")
        return self

    @property
    def classes(self) -> list[tuple[int, list[int]]]:
        """(modulus, remainders) of each residue class, the fastest first."""
        return classes_of(self.period)

    @property
    def latencies(self) -> dict[int, float]:
        """Latency in microseconds by dim."""
        return dict(zip(self.points.d, self.points.latency_us, strict=True))

    def comparable_among(self, sizes: Sequence[int]) -> list[bool]:
        """Which of these sizes, ascending, are comparable where only they are measured. One that
        was not measured is as the next one that was."""
        known = [d for d in sizes if self.points.place(d) is not None]
        comparable = [*comparable_dims(known, self.period), False]
        return [comparable[bisect_left(known, d)] for d in sizes]

    def frame_rows(self) -> Iterator[dict[str, Any]]:
        p = self.points
        names = ("latency_us", "low_us", "high_us", "count", "penalty_low", "penalty_high")
        columns = (p.latency_us, p.low_us, p.high_us, p.count, p.penalty_low, p.penalty_high)
        for d, verdict, *numbers in zip(p.d, self.verdicts, *columns, strict=True):
            yield {
                self.axis: d,
                **dict(zip(names, numbers, strict=True)),
                "verdict": verdict,
                "on_frontier": d in self.frontier,
            }

    def frame_title(self) -> str:
        return self.identity

    @property
    def verdicts(self) -> list[Verdict]:
        """Of each measured dim."""
        verdict: dict[int, Verdict] = dict.fromkeys(self.safe, "safe")
        verdict |= dict.fromkeys(self.misaligned, "misaligned")
        return [verdict.get(d, "undecided") for d in self.points.d]

    def point(self, d: int) -> Point:
        """What was measured at a dim."""
        dims = {**self.fixed, self.axis: d}
        return Point.of(self.operator, dims, self.dtype, self.flags)

    @property
    def undecided(self) -> list[int]:
        """Dims that are neither safe nor misaligned."""
        return [d for d, v in zip(self.points.d, self.verdicts, strict=True) if v == "undecided"]

    @property
    def identity(self) -> str:
        """What tells this curve from others, for people: ``linear K (M=1 N=4096) float16``."""
        return f"{self.shape} {self.settings}"

    @property
    def shape(self) -> str:
        """Operator, axis and the other dims: ``linear K (M=1 N=4096)``."""
        fixed = " ".join(f"{name}={size}" for name, size in self.fixed.items())
        return f"{self.operator} {self.axis} ({fixed})"

    @property
    def settings(self) -> str:
        """Dtype and flags: ``float16 bias=False``."""
        return " ".join([self.dtype, *(f"{name}={value}" for name, value in self.flags.items())])


class IsolatedPoint(Strict):
    """A measured point that lies on no swept axis: good for look-ups, not for findings."""

    operator: str
    dims: dict[str, Size]
    dtype: str
    flags: dict[str, bool | int | str] = Field(default_factory=dict)
    timer: str
    latency_us: Positive
    low_us: Positive | None = None
    high_us: Positive | None = None
    count: int
    mechanism: str | None = None
    kernels: list[str] = Field(default_factory=list)


class MapFile(Strict):
    """The whole file. ``unmeasured`` are curves that the sweep was to measure and did not."""

    schema_: Literal["gacprof.cliffmap/3"] = Field(alias="schema")
    name: str
    device: Device
    provenance: Provenance
    noise: Noise
    checks: list[Check] = Field(default_factory=list)
    curves: list[Curve]
    isolated: list[IsolatedPoint] = Field(default_factory=list)
    unmeasured: list[str] = Field(default_factory=list)

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    @model_validator(mode="after")
    def _curves_differ(self) -> MapFile:
        seen = set()
        for curve in self.curves:
            if curve.identity in seen:
                raise ValueError(f"two curves are the same one: {curve.identity}")
            seen.add(curve.identity)
        return self

    @property
    def too_noisy(self) -> str:
        """Why the map cannot be judged by; empty where it can.

        Its A/A floor is above :data:`MOST_FLOOR`, or more than :data:`MOST_WIDE` of its dims are
        undecided with a bound above :data:`WIDE` tolerances. Dims that are not
        comparable do not count: no quieter sweep would decide them.
        """
        reasons = []
        floor = self.noise.floor
        if floor is not None and floor > MOST_FLOOR:
            reasons.append(f"its A/A floor is {floor:.1%}, above {MOST_FLOOR:.0%}")
        bounds = [
            (verdict, high, WIDE * curve.tolerance)
            for curve in self.curves
            for d, verdict, high in zip(
                curve.points.d, curve.verdicts, curve.points.penalty_high, strict=True
            )
            if curve.coverage.compares(d)
        ]
        wide = sum(v == "undecided" and (high is None or high > most) for v, high, most in bounds)
        if wide > MOST_WIDE * len(bounds):
            reasons.append(
                f"{wide} of {len(bounds)} dims are undecided with penalties of up to more than "
                f"{WIDE} tolerances"
            )
        return " and ".join(reasons)
