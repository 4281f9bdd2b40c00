"""A dispute, what was measured for it, and the verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from gacprof.core.points import Point, Sample
from gacprof.explain.case import Where
from gacprof.kernels.names import Group, attach

SETTLED, UNDECIDED, OPEN = "settled", "undecided", "open"
"""Settled; measured but not told apart; not measured, ``needs`` says what it takes."""


@dataclass(frozen=True)
class Verdict:
    number: int
    title: str
    status: str
    finding: str
    evidence: tuple[str, ...] = ()
    basis: str = ""
    needs: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Results:
    """The samples of one dispute's points. ``floor`` is the relative noise floor."""

    samples: Sequence[Sample]
    where: Where
    floor: float

    def _of(self, point: Point) -> list[Sample]:
        return [s for s in self.samples if s.status == "ok" and s.timings_us and s.point == point]

    def latency(self, point: Point) -> float | None:
        """Median µs over all calls; None where the point was not measured."""
        timings = [t for sample in self._of(point) for t in sample.timings_us]
        return median(timings) if timings else None

    def ratio(self, point: Point, to: Point) -> float | None:
        """latency(point) / latency(to)."""
        a, b = self.latency(point), self.latency(to)
        return a / b if a is not None and b is not None else None

    def groups(self, point: Point) -> list[Group]:
        """The kernels of one call of the point, where they were recorded."""
        return attach(next((sample.kernels for sample in self._of(point) if sample.kernels), ()))

    def timers(self) -> set[str]:
        return {sample.timer for sample in self.samples if sample.status == "ok"}

    def failures(self) -> list[str]:
        return [f"{s.point}: {s.reason or s.status}" for s in self.samples if s.status != "ok"]


Decision = tuple[str, str, tuple[str, ...]]
"""(status, finding, evidence)."""


@dataclass(frozen=True)
class Dispute:
    """``points`` are what is to be measured, ``decide`` reads the outcome off their samples.

    ``static`` settles it without a device where that can be done. ``needs`` says what a
    machine must have for ``points`` to mean anything.
    """

    number: int
    title: str
    claims: tuple[str, ...]
    needs: str
    points: tuple[Point, ...] = ()
    decide: Callable[[Results], Decision] | None = None
    static: Callable[[], Decision] | None = None

    def as_dict(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "title": self.title,
            "claims": list(self.claims),
            "needs": self.needs,
            "points": [str(point) for point in self.points],
            "static": self.static is not None,
        }
