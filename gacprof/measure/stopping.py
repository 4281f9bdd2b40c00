"""When a visit has enough timings. A rule is three verbs: start, add, finished."""

from __future__ import annotations

from typing import Protocol

from gacprof.measure.stats import relative_half_width


class StoppingRule(Protocol):
    def start(self) -> None: ...
    def add(self, timings_us: list[float]) -> None: ...
    def finished(self) -> bool: ...
    def batch(self) -> int:
        """How many timings to take before asking again."""
        ...


class FixedCount:
    """Exactly so many timings: the papers' practice."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._taken = 0

    def start(self) -> None:
        self._taken = 0

    def add(self, timings_us: list[float]) -> None:
        self._taken += len(timings_us)

    def batch(self) -> int:
        return max(1, self._count - self._taken)

    def finished(self) -> bool:
        return self._taken >= self._count


class Confidence:
    """Until the median is known well enough, bounded on both sides.

    Stops when the half-width of the median's 95 % interval is at most ``half_width`` of the
    median (a third of the smallest cliff of interest), but not before ``least`` timings, and
    in any case once ``cap_us`` microseconds were spent after those.
    """

    def __init__(self, half_width: float, least: int, cap_us: float) -> None:
        self._half_width = half_width
        self._least = least
        self._cap_us = cap_us
        self._timings: list[float] = []

    def start(self) -> None:
        self._timings = []

    def add(self, timings_us: list[float]) -> None:
        self._timings += timings_us

    def batch(self) -> int:
        return self._least if not self._timings else max(5, len(self._timings) // 2)

    def finished(self) -> bool:
        if len(self._timings) < self._least:
            return False
        if sum(self._timings) >= self._cap_us:
            return True
        return relative_half_width(self._timings) <= self._half_width
