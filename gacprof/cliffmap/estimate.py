"""A predicted time with its error: how estimates add up, and what one takes less than another."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp, hypot, inf, log, sqrt

from gacprof.core.files import Record
from gacprof.stats.judge import quantile, satterthwaite


@dataclass(frozen=True)
class Interval(Record):
    """A time in µs, or a difference of times, with its bounds."""

    low: float
    value: float
    high: float


NORMAL_90 = 1.645
"""Standard errors on either side that hold 90 % of a normal distribution."""


@dataclass(frozen=True)
class Estimate:
    """A predicted time, or why there is none. ``scaled`` if any part was not measured exactly.

    ``variance`` is that of the time in µs², of what the source's errors tell; None where it gives
    no error for a part; ``degrees`` are its degrees of freedom. Errors of a table have one sign
    more often than not, and their variances would average out what does not: such a source gives
    ``own``, the bounds in µs by errors that differ from size to size, which add up; and ``shared``,
    the relative error (of the logarithm) that all its times have in common, which leaves a
    difference's sign as it is. ``least`` is what the device needs at its peak rates, in µs: no
    bound is below it.
    """

    latency_us: float | None
    missing: str = ""
    scaled: bool = False
    variance: float | None = None
    degrees: float = inf
    own: tuple[float, float] | None = None
    shared: float = 0.0
    least: float = 0.0

    @property
    def error(self) -> float | None:
        """The relative standard error."""
        if self.latency_us is None or self.variance is None:
            return None
        return sqrt(self.variance) / self.latency_us if self.latency_us else 0.0

    def half_width(self, level: float) -> float:
        """Half of what the time's interval spans, in µs, exceeded on each side with the chance
        ``level`` (Student's); 0 where no error is known."""
        return quantile(level, self.degrees) * sqrt(self.variance or 0.0)

    def __add__(self, other: Estimate) -> Estimate:
        if self.latency_us is None or other.latency_us is None:
            return Estimate(None, self.missing or other.missing)
        known = self.variance is not None and other.variance is not None
        variance = (self.variance or 0.0) + (other.variance or 0.0) if known else None
        errors = sqrt(self.variance or 0.0), sqrt(other.variance or 0.0)
        degrees = satterthwaite(errors, (self.degrees, other.degrees))
        own = None
        if self.own and other.own:
            own = self.own[0] + other.own[0], self.own[1] + other.own[1]
        scaled, total = self.scaled or other.scaled, self.latency_us + other.latency_us
        common = self.shared * self.latency_us + other.shared * other.latency_us
        shared = common / total if total else 0.0
        least = self.least + other.least
        return Estimate(total, "", scaled, variance, degrees, own, shared, least)

    def times(self, weight: float) -> Estimate:
        if self.latency_us is None:
            return self
        variance = None if self.variance is None else self.variance * weight**2
        own = None if self.own is None else (self.own[0] * weight, self.own[1] * weight)
        latency, least = self.latency_us * weight, self.least * weight
        return replace(self, latency_us=latency, variance=variance, own=own, least=least)

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
        half = self.half_width(0.05)
        return Interval(value - half, value, value + half)

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
        half = (self + then).half_width(0.05)
        return Interval(value - half, value, value + half)


NOTHING = Estimate(0.0, variance=0.0, own=(0.0, 0.0))
