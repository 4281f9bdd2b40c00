"""All visits to one point, and the one latency that stands for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from gacprof.cliffmap.curves import Measured
from gacprof.measure.stats import median, median_interval, relative_difference
from gacprof.points import Sample

Timings = tuple[float, ...]


@dataclass
class Visits:
    """What was sampled of one point with one timer: its own visits, those in disguise, and
    which kernels served each kind. Timings in microseconds, one tuple a visit."""

    own: list[Timings] = field(default_factory=list)
    disguised: list[Timings] = field(default_factory=list)
    served: Counter[tuple[str | None, tuple[str, ...]]] = field(default_factory=Counter)
    served_disguised: Counter[tuple[str | None, tuple[str, ...]]] = field(default_factory=Counter)
    troubles: list[str] = field(default_factory=list)
    axes: set[str] = field(default_factory=set)

    def add(self, sample: Sample, mechanism: str | None) -> None:
        self.axes.update(sample.axes)
        if sample.status != "ok" or not sample.timings_us:
            self.troubles.append(sample.reason or sample.status)
            return
        (self.disguised if sample.duplicate else self.own).append(sample.timings_us)
        if mechanism or sample.kernels:
            served = self.served_disguised if sample.duplicate else self.served
            served[mechanism, sample.kernels] += 1

    @property
    def telling(self) -> list[Timings]:
        """The visits that tell the point's latency: its own. Where those failed, or a budget
        ended the sweep before them, the disguised ones, which are timed alike."""
        return self.own or self.disguised

    def measured(self, d: int) -> Measured:
        """The least disturbed of the point's visits, with the interval of its median."""
        timings = least_disturbed(self.telling)
        low, middle, high = median_interval(timings)
        mechanism, kernels = self._commonest()
        return Measured(d, middle, low, high, len(timings), mechanism, kernels)

    @property
    def disagreement(self) -> float | None:
        """How far apart the same statistic of the disguised visits lies; None without any.

        Both sides take the least of as many visits: of fewer it would be larger.
        """
        count = min(len(self.own), len(self.disguised))
        if not count:
            return None
        own, disguised = self.own[:count], self.disguised[:count]
        return relative_difference(median(least_disturbed(own)), median(least_disturbed(disguised)))

    def _commonest(self) -> tuple[str | None, tuple[str, ...]]:
        served = self.served if self.own else self.served_disguised
        if not served:
            return None, ()
        return min(served, key=lambda seen: (-served[seen], str(seen)))


def least_disturbed(visits: Sequence[Timings]) -> Timings:
    """The visit with the smallest median.

    Other work on a machine only ever adds time, and does so for seconds on end: whole visits
    are slow, not single calls. The median of what is pooled, or of the visits' medians, then
    lies anywhere between the two states; docs/cliff-map.md gives the comparison.
    """
    return min(visits, key=median)
