"""The latency profile of one dim: its possible sizes, their predicted latency and verdicts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from gacprof.checkpoint.inventory import Dim
from gacprof.cliffmap.source import SizeCost
from gacprof.core.points import MAX_DIM
from gacprof.diagnosing.predict import Predictor


@dataclass(frozen=True)
class LatencyProfile:
    """What one dim could become, by size, ascending. A size is judged on the sum over all GEMMs
    that the dim feeds: one that suits one product and not the other, by what both cost.

    ``missing`` says which product the map lacks, where it lacks one; ``noisy`` that the map as a
    whole is too noisy to judge by.
    """

    costs: Mapping[int, SizeCost]
    tolerance: float
    scaled: bool
    missing: str = ""
    noisy: bool = False

    def offers(self, size: int, now: int) -> bool:
        """Whether a plan may choose the size: a safe one; one that seems safe, though noise leaves
        it undecided, if the map tells what is gained and is not ``noisy``; one of the best tier,
        where that is all there is; and the size as it is ``now`` while nothing says that it is
        misaligned."""
        cost = self.costs.get(size)
        if cost is None or cost.verdict == "misaligned":
            return False
        if cost.verdict == "safe" or size == now or cost.tier == 1:
            return True
        if self.noisy or cost.penalty_high is None or now not in self.costs:
            return False
        return cost.penalty is not None and cost.penalty <= self.tolerance

    def best_padding(self, size: int) -> SizeCost | None:
        """The fastest size ≥ ``size``; the smallest within the tolerance of it. Where no time is
        known, the smallest of the best tier."""
        above = [cost for cost in self.costs.values() if cost.size >= size]
        times = [cost.latency_us for cost in above if cost.latency_us is not None]
        if not times:
            tiers = {cost.size: (cost.tier, cost.size) for cost in above if cost.tier is not None}
            return self.costs[min(tiers, key=lambda s: tiers[s])] if tiers else None
        limit = min(times) * (1 + self.tolerance)
        return next(c for c in above if c.latency_us is not None and c.latency_us <= limit)


LEAST_REACH = 32
"""How far sizes are looked for each way at least: a small dim has another tile beside it too (the
next multiple of AMX's 32 of K, say)."""


def around(dims: Sequence[Dim], window: float) -> tuple[int, int]:
    """The sizes within ±``window`` (a fraction) of any of these dims."""
    reach = {dim.size: max(LEAST_REACH, round(dim.size * window)) for dim in dims}
    low = min(size - far for size, far in reach.items())
    high = max(size + far for size, far in reach.items())
    return max(1, low), high


def latency_profile(
    predictor: Predictor, dim: Dim, low: int, high: int, also: Collection[int] = ()
) -> LatencyProfile:
    """What the map knows of the dim at sizes from ``low`` to ``high``, and as it is.

    Sizes are those that the source has on offer (:meth:`Predictor.sizes`); it compares them with
    larger ones, whether or not these are within ``high`` or :attr:`Dim.most`. ``dim.dense_size``
    has no say: a size is no better served for having been larger once.
    """
    key = predictor.shape_of(dim), low, high, *sorted(also)
    return predictor.once(key, lambda: _profile(predictor, dim, low, high, also))


def _profile(
    predictor: Predictor, dim: Dim, low: int, high: int, also: Collection[int]
) -> LatencyProfile:
    high = min(high, dim.most or MAX_DIM)
    least = min(low, dim.size, *also)
    answers = predictor.judge(dim, sorted({dim.size, *predictor.sizes(dim, least, high), *also}))
    costs = {answer.size: answer.cost for answer in answers if answer.cost and answer.size <= high}
    missing = next((answer.missing for answer in answers if answer.missing), "")
    scaled = any(answer.scaled for answer in answers)
    return LatencyProfile(costs, predictor.tolerance, scaled, missing, predictor.noisy)
