"""Statistics: a bench's fitted latencies and ratios; two models on the same text.

Every block calls all models once at one workload, so the blocks of a bench are the blocks of
:mod:`gacprof.stats.fit`. What differs is that models are compared with one reference, and that
blocks of one round belong together, so that the bootstrap resamples whole rounds. All intervals are
Student's, with errors from the bootstrap. Those of ratios are simultaneous: the level is divided by
the number of verdicts and shared among the looks at the data (Bonferroni). Models are compared with
the reference and its A/A replicate together, and a difference counts only beyond what the replicate
shows.

Windows of a text are hard for all models alike. So differences are taken window by window, and the
interval is that of their mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import exp, expm1, sqrt
from typing import Any, Literal

import numpy as np
from scipy.special import stdtrit

from gacprof.evaluation.request import FIRST_LOOK
from gacprof.stats.fit import QUARTILE, Floats, Ints, two_way

FAMILYWISE_LEVEL = 0.05
"""Of all verdicts of a bench together: the chance that any of them claims what is not there."""
COVERAGE = 0.95
"""Of a latency's own interval."""
RESAMPLES = 200
"""Of a bench's rounds, each a robust fit of 4 ms: the error itself is then known to 5 %
(1 / √(2 · 200))."""
NEGLIGIBLE = 0.01
"""A bench goes on until a difference is shown or cannot be larger than this."""

Difference = Literal["faster", "slower", "no difference shown"]


@dataclass(frozen=True)
class WorkloadFit:
    """The models of one workload, by column. ``log_ratio`` and its standard ``error`` are against
    the reference; latencies are at the lower quartile of the blocks, with 95 % intervals.

    The reference is column 0. Where the last column is its replicate it is both together, in
    ``latency_us`` too; only the replicate's own ratio is to column 0 alone, the A/A difference.
    """

    latency_us: Floats
    low_us: Floats
    high_us: Floats
    log_ratio: Floats
    error: Floats
    rounds: int


def fit_workload(
    us: Floats, rounds: Sequence[int] | Ints, seed: int = 0, *, replicate: bool = False
) -> WorkloadFit:
    """Fit times [calls, models] in µs; ``rounds`` numbers the round of each call, which is a block.
    ``replicate`` says whether the last column is the reference's.

    Raises ``ValueError`` for fewer than two rounds.
    """
    numbers, which = np.unique(np.asarray(rounds), return_inverse=True)
    if len(numbers) < 2:
        raise ValueError("an interval needs at least two rounds")
    log_us = np.log(us)
    effect, block = two_way(log_us)
    # Fitted anew to every resample: with few columns the block effects are much of the error.
    rest = log_us - block[:, None]
    latencies, ratios = _contrasts(us.shape[1], replicate)
    latency = latencies @ (effect + np.quantile(block, QUARTILE))
    compared, drawn = [], []
    for chosen in _resampled(which, seed):
        again = two_way(rest[chosen])[0]
        compared.append(again)
        drawn.append(latencies @ (again + np.quantile(block[chosen], QUARTILE)))
    count = len(numbers)
    half = half_width(bootstrap_error(np.array(drawn), count), count, 1 - COVERAGE)
    return WorkloadFit(
        np.exp(latency),
        np.exp(latency - half),
        np.exp(latency + half),
        ratios @ effect,
        bootstrap_error(np.array(compared) @ ratios.T, count),
        count,
    )


def bootstrap_error(resampled: Floats, values: int) -> Floats:
    """The standard error of an estimate from what it is of resamples [resamples, …] of so many
    values: the bootstrap's variance is (n − 1)/n of the sample's."""
    return np.asarray(resampled.std(axis=0) * sqrt(values / (values - 1)))


def _contrasts(models: int, replicate: bool) -> tuple[Floats, Floats]:
    """Each model's latency and ratio as weights [models, models] of all log latencies."""
    one = np.eye(models)
    reference = (one[0] + one[-1]) / 2 if replicate else one[0]
    latencies, ratios = one.copy(), one - reference
    latencies[0], ratios[0] = reference, 0.0
    if replicate:
        ratios[-1] = one[-1] - one[0]
    return latencies, ratios


def _resampled(rounds: Ints, seed: int) -> Iterator[Ints]:
    """Blocks of as many rounds as there are, drawn with replacement."""
    draw = np.random.default_rng(seed)
    members = [np.flatnonzero(rounds == number) for number in range(int(rounds.max()) + 1)]
    for _ in range(RESAMPLES):
        drawn = draw.integers(len(members), size=len(members))
        yield np.concatenate([members[k] for k in drawn])


def looks(most: int) -> tuple[int, ...]:
    """Numbers of rounds after which verdicts are tried: 12, 24, 48 … and the last."""
    found, at = [], FIRST_LOOK
    while at < most:
        found.append(at)
        at *= 2
    return (*found, most)


def level_of_one(verdicts: int, most_rounds: int, early: bool = False) -> float:
    """The level of a single interval, so that :data:`FAMILYWISE_LEVEL` is that of all together.
    Half of it is for the end, the looks before (``early``) share the other half."""
    before = len(looks(most_rounds)) - 1
    level = FAMILYWISE_LEVEL / max(1, verdicts)
    if not before:
        return level
    return level / 2 / before if early else level / 2


def half_width(error: Any, values: int, level: float) -> Any:
    """Half the width of a two-sided interval, Student's with ``values`` − 1 degrees of freedom, of
    one standard error or of an array of them."""
    return error * float(stdtrit(values - 1, 1 - level / 2))


@dataclass(frozen=True)
class Ratio:
    """A model's time over the reference's, as a log ratio and half its interval's width."""

    log: float
    half: float

    @property
    def reach(self) -> float:
        """The largest difference, as |log ratio|, that the interval allows."""
        return abs(self.log) + self.half

    def as_ratio(self) -> tuple[float, float, float]:
        """(low, ratio, high); below 1 is faster."""
        return exp(self.log - self.half), exp(self.log), exp(self.log + self.half)


def difference(ratio: Ratio, replicate: Ratio) -> Difference:
    """``faster`` or ``slower`` where the interval excludes 1 and the difference is larger than
    any that the A/A replicate's interval allows."""
    if abs(ratio.log) <= max(ratio.half, replicate.reach):
        return "no difference shown"
    return "faster" if ratio.log < 0 else "slower"


def decided(ratio: Ratio, replicate: Ratio, contended: bool = False) -> bool:
    """Whether more rounds could not change what is said: a difference is shown, or any there
    might be is negligible. Of the latter timings of a ``contended`` machine are no evidence."""
    negligible = ratio.reach <= NEGLIGIBLE and not contended
    return negligible or difference(ratio, replicate) != "no difference shown"


FEWEST = 7
"""Windows: fewer differences say little of their own spread."""

QUALITY_RESAMPLES = 2000
"""Of a text's windows, each a weighted mean: the error itself is then known to 1.6 %."""
SEED = 0

Finding = Literal["better", "worse", "no difference shown"]


@dataclass(frozen=True)
class Change:
    """A model's perplexity against the first one's: ratio − 1 with its interval. ``finding`` says
    what the interval excludes; where it says *no difference shown*, ``low`` and ``high`` say how
    large one could still be."""

    low: float
    value: float
    high: float
    finding: Finding


def perplexity_change(
    nll: Floats, reference: Floats, tokens: Floats, level: float
) -> Change | None:
    """Of the perplexity, from the negative log-likelihoods [windows] and predictions of each, with
    its interval at ``level`` (0.05 for 95 %).

    None for fewer than :data:`FEWEST` windows, and where anything is not finite.
    """
    more, n = nll - reference, len(nll)
    if n < FEWEST or not np.isfinite(more).all():
        return None
    value = float(more.sum() / tokens.sum())
    drawn = np.random.default_rng(SEED).multinomial(n, np.full(n, 1 / n), size=QUALITY_RESAMPLES)
    means = (drawn @ more) / (drawn @ tokens)
    half = float(half_width(bootstrap_error(means, n), n, level))
    low, middle, high = (expm1(log) for log in (value - half, value, value + half))
    finding: Finding = "better" if high < 0 else "worse" if low > 0 else "no difference shown"
    return Change(low, middle, high, finding)
