"""A predicted time with its error: how estimates add up, and what one takes less than another."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp, hypot, log, sqrt

from gacprof.core.files import Record


@dataclass(frozen=True)
class Interval(Record):
    """A time in µs, or a difference of times, with its bounds."""

    low: float
    value: float
    high: float


SURELY = 1.645
"""Standard errors that 90 % of errors stay below on both sides (the normal distribution's)."""


@dataclass(frozen=True)
class Estimate:
    """A predicted time, or why there is none. ``scaled`` if any part was not measured exactly.

    ``variance`` is that of the time in µs², of what the source's errors tell; None where it gives
    no error for a part. Errors of a table have one sign more often than not, and their variances
    would average out what does not: such a source gives ``own``, the bounds in µs by errors that
    differ from size to size, which add up; and ``shared``, the relative error (of the logarithm)
    that all its times have in common, which leaves a difference's sign as it is. ``least`` is what
    the device needs at its peak rates, in µs: no bound is below it.
    """

    latency_us: float | None
    missing: str = ""
    scaled: bool = False
    variance: float | None = None
    own: tuple[float, float] | None = None
    shared: float = 0.0
    least: float = 0.0

    @property
    def error(self) -> float | None:
        """The relative standard error."""
        if self.latency_us is None or self.variance is None:
            return None
        return sqrt(self.variance) / self.latency_us if self.latency_us else 0.0

    def __add__(self, other: Estimate) -> Estimate:
        if self.latency_us is None or other.latency_us is None:
            return Estimate(None, self.missing or other.missing)
        known = self.variance is not None and other.variance is not None
        variance = (self.variance or 0.0) + (other.variance or 0.0) if known else None
        own = None
        if self.own and other.own:
            own = self.own[0] + other.own[0], self.own[1] + other.own[1]
        scaled, total = self.scaled or other.scaled, self.latency_us + other.latency_us
        common = self.shared * self.latency_us + other.shared * other.latency_us
        shared = common / total if total else 0.0
        return Estimate(total, "", scaled, variance, own, shared, self.least + other.least)

    def times(self, weight: float) -> Estimate:
        if self.latency_us is None:
            return self
        variance = None if self.variance is None else self.variance * weight**2
        own = None if self.own is None else (self.own[0] * weight, self.own[1] * weight)
        return Estimate(
            self.latency_us * weight, "", self.scaled, variance, own, self.shared,
            self.least * weight,
        )  # fmt: skip

    def at_least(self, least: float) -> Estimate:
        """The same where neither the time nor its bounds are below ``least`` µs."""
        if self.latency_us is None:
            return self
        own = self.own and (max(self.own[0], least), max(self.own[1], least))
        return replace(self, latency_us=max(self.latency_us, least), own=own, least=least)

    @property
    def interval(self) -> Interval | None:
        """The time with its bounds; None where it, or its error, is not known."""
        value = self.latency_us
        if value is None:
            return None
        if self.own and value > 0:
            low, high = (hypot(log(end / value), self.shared) for end in self.own)
            return Interval(max(value * exp(-low), self.least), value, value * exp(high))
        if self.own or self.variance is None:
            return Interval(value, value, value) if self.own else None
        return Interval(value - self._half, value, value + self._half)

    @property
    def _half(self) -> float:
        return SURELY * sqrt(self.variance or 0.0)

    def saved(self, then: Estimate) -> Interval | None:
        """How much less ``then`` takes than this, with bounds; None where that is not known."""
        if self.latency_us is None or then.latency_us is None:
            return None
        value = self.latency_us - then.latency_us
        if self.own and then.own:
            low, high = self.own[0] - then.own[1], self.own[1] - then.own[0]
            wider = exp(max(self.shared, then.shared))
            low = low / wider if low > 0 else low * wider
            return Interval(low, value, high * wider if high > 0 else high / wider)
        if self.variance is None or then.variance is None:
            return None
        half = hypot(self._half, then._half)
        return Interval(value - half, value, value + half)


NOTHING = Estimate(0.0, variance=0.0, own=(0.0, 0.0))
