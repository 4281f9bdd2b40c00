"""The latency profile of one dim: its possible sizes, their predicted latency and verdicts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import NamedTuple

from gacprof.checkpoint.inventory import Dim
from gacprof.cliffmap.judge import Verdict, judge
from gacprof.core.points import MAX_DIM
from gacprof.diagnosing.predict import Predictor


@dataclass(frozen=True)
class SizeCost:
    """What one size costs: µs over the workload, in all GEMMs that the dim feeds.

    The penalty is that over the fastest size at least as large; ``penalty_high`` is None where
    nothing larger settles it: the size is not safe then.
    """

    size: int
    latency_us: float
    penalty: float
    penalty_low: float
    penalty_high: float | None
    verdict: Verdict


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
        it undecided, if the map tells what is gained and is not ``noisy``; and the size as it is
        ``now`` while nothing says that it is misaligned."""
        cost = self.costs.get(size)
        if cost is None or cost.verdict == "misaligned":
            return False
        if cost.verdict == "safe" or size == now:
            return True
        if self.noisy or cost.penalty_high is None or now not in self.costs:
            return False
        return cost.penalty <= self.tolerance

    def best_padding(self, size: int) -> SizeCost | None:
        """The fastest size ≥ ``size``; the smallest within the tolerance of it."""
        above = [cost for cost in self.costs.values() if cost.size >= size]
        fastest = min((cost.latency_us for cost in above), default=inf)
        return next((c for c in above if c.latency_us <= fastest * (1 + self.tolerance)), None)


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

    Sizes are those that were measured (:meth:`Predictor.measured_sizes`). Ones beyond ``high``
    or :attr:`Dim.most` still count for the penalty, so that the last sizes are not called safe
    for want of a neighbour. ``dim.dense_size`` has no say: a size is no better served for having
    been larger once.
    """
    key = predictor.shape_of(dim), low, high, *sorted(also)
    return predictor.once(key, lambda: _profile(predictor, dim, low, high, also))


def _profile(
    predictor: Predictor, dim: Dim, low: int, high: int, also: Collection[int]
) -> LatencyProfile:
    high = min(high, dim.most or MAX_DIM)
    measured = predictor.measured_sizes(dim, 1, MAX_DIM)
    sizes = sorted({dim.size, *measured, *also})
    table = _table(predictor, dim) if sizes == measured else _judged(predictor, dim, sizes)
    least = min(low, dim.size, *also)
    within = [row for row in table if row.size >= least]
    costs = {row.size: row.cost for row in within if row.cost and row.size <= high}
    missing = next((row.missing for row in within if row.missing), "")
    scaled = any(row.scaled for row in within)
    return LatencyProfile(costs, predictor.tolerance, scaled, missing, predictor.noisy)


class _Row(NamedTuple):
    """One size: what it costs, or which product the map lacks."""

    size: int
    cost: SizeCost | None
    scaled: bool
    missing: str


def _table(predictor: Predictor, dim: Dim) -> list[_Row]:
    """All sizes that were measured on the dim's curves. A size is judged by the larger ones
    alone, so dims of different sizes on the same curves share one table."""
    key = "table", predictor.curves_like(dim), dim.most
    return predictor.once(
        key, lambda: _judged(predictor, dim, predictor.measured_sizes(dim, 1, MAX_DIM))
    )


def _judged(predictor: Predictor, dim: Dim, sizes: Sequence[int]) -> list[_Row]:
    estimates = [predictor.dim(dim, size) for size in sizes]
    known = [(s, e) for s, e in zip(sizes, estimates, strict=True) if e.latency_us is not None]
    latencies = [e.latency_us for _, e in known if e.latency_us is not None]
    settled = predictor.settled(dim, [size for size, _ in known], latencies)
    sure = [size == dim.most or yes for (size, _), yes in zip(known, settled, strict=True)]
    judged = judge(latencies, _errors([e.error for _, e in known]), predictor.tolerance, sure)
    columns = (
        [size for size, _ in known], latencies, judged.penalty.tolist(), judged.low.tolist(),
        [p if isfinite(p) else None for p in judged.high.tolist()], judged.verdict,
    )  # fmt: skip
    costs = {row[0]: SizeCost(*row) for row in zip(*columns, strict=True)}
    return [
        _Row(size, costs.get(size), e.scaled, e.missing)
        for size, e in zip(sizes, estimates, strict=True)
    ]


def _errors(errors: Sequence[float | None]) -> list[float] | None:
    """None where the map gives none at all; infinite for a size that lacks one."""
    if all(error is None for error in errors):
        return None
    return [inf if error is None else error for error in errors]
