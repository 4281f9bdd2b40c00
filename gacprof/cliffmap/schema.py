"""The cliff map as a file: ``gacprof.cliffmap/1``.

Everything a map says about one swept axis stands in a :class:`Curve`; points are kept as
parallel columns, so that a map of tens of thousands of points stays small and loads fast.
Latencies are microseconds, dims are counts, floors and penalties are fractions (0.02 = 2 %).
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

SCHEMA = "gacprof.cliffmap/1"

Fraction = Annotated[float, Field(ge=0.0)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Device(_Strict):
    """The chip: ``arch`` is ``sm80``, ``sm90`` … or the CPU's instruction set."""

    kind: Literal["cuda", "cpu", "recorded"]
    name: str
    arch: str
    facts: dict[str, Any] = Field(default_factory=dict)


class Provenance(_Strict):
    """How the map came about. A measured map names its stack; a published one its source."""

    kind: Literal["measured", "published", "rules"]
    created: str
    source: str = ""
    citation: str = ""
    licence: str = ""
    suite: str = ""
    suite_hash: str = ""
    stack: dict[str, str | None] = Field(default_factory=dict)
    notes: list[str] = Field(default_factory=list)


class Noise(_Strict):
    """The A/A floor: what the same point measured twice differs by.

    ``floor`` is the ``quantile`` of the relative differences of ``pairs`` hidden duplicates,
    or null with the ``reason`` why there is none.
    """

    floor: Fraction | None
    quantile: float | None = None
    pairs: int = 0
    reason: str = ""


class Tier(_Strict):
    """Dims served by the same mechanism, as one stretch of the axis: first to last, in steps.

    ``mechanism`` is the kernel or backend identity where it is known. ``residue`` is set
    where the tier holds only the dims of one residue class (``modulus``, ``remainder``).
    """

    name: str
    first: int
    last: int
    modulus: int = 1
    remainders: list[int] = Field(default_factory=lambda: [0])
    mechanism: str | None = None
    median_us: float | None = None


class Cliff(_Strict):
    """An edge between two neighbouring measured dims where latency jumps.

    ``jump`` is latency(after) / latency(before) − 1, negative where the larger dim is
    faster. ``low`` and ``high`` bound it by the intervals of both medians.
    """

    before: int
    after: int
    jump: float
    low: float
    high: float
    cause: str | None = None


class Points(_Strict):
    """Parallel columns, ascending in ``d``, one entry a measured dim."""

    d: list[int]
    median_us: list[float]
    low_us: list[float | None]
    high_us: list[float | None]
    count: list[int]
    mechanism: list[str | None] = Field(default_factory=list)

    @model_validator(mode="after")
    def _columns_agree(self) -> Points:
        n = len(self.d)
        columns = [self.median_us, self.low_us, self.high_us, self.count]
        if any(len(column) != n for column in columns) or len(self.mechanism) not in (0, n):
            raise ValueError("the columns of 'points' differ in length")
        if any(d <= 0 for d in self.d):
            raise ValueError("a dim is not positive")
        if any(b <= a for a, b in zip(self.d, self.d[1:], strict=False)):
            raise ValueError("dims are not strictly ascending (a duplicate, or out of order)")
        for d, latency in zip(self.d, self.median_us, strict=True):
            if not math.isfinite(latency) or latency <= 0:
                raise ValueError(f"latency at d={d} is {latency}, not a positive number")
        return self


class Coverage(_Strict):
    """Which dims were asked for and which could not be measured, each with its reason."""

    first: int
    last: int
    measured: int
    failed: dict[int, str] = Field(default_factory=dict)


class Curve(_Strict):
    """One axis of one operator, everything else held fixed."""

    operator: str
    axis: str
    fixed: dict[str, int]
    dtype: str
    flags: dict[str, str | int | bool] = Field(default_factory=dict)
    timer: str
    points: Points
    tiers: list[Tier] = Field(default_factory=list)
    cliffs: list[Cliff] = Field(default_factory=list)
    frontier: list[int] = Field(default_factory=list)
    safe: list[int] = Field(default_factory=list)
    tolerance: Fraction
    coverage: Coverage

    @model_validator(mode="after")
    def _findings_lie_on_the_axis(self) -> Curve:
        dims = set(self.points.d)
        for where, listed in (
            ("frontier", self.frontier),
            ("safe", self.safe),
            ("cliffs", [d for cliff in self.cliffs for d in (cliff.before, cliff.after)]),
        ):
            stray = [d for d in listed if d not in dims]
            if stray:
                raise ValueError(
                    f"{self.operator}.{self.axis}: '{where}' names {stray[0]}, "
                    "which is not among the curve's points"
                )
        return self


class MapFile(_Strict):
    """The whole file."""

    schema_: Literal["gacprof.cliffmap/1"] = Field(alias="schema", default=SCHEMA)
    name: str
    device: Device
    provenance: Provenance
    noise: Noise
    curves: list[Curve]

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)
