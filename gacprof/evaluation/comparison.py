"""Statistics: a bench's fitted latencies and ratios; two models on the same text or questions.

Every block calls all models once at one workload, or the same part of it, so the blocks of a
bench are the blocks of :mod:`gacprof.core.fit`: log time = model effect + block effect +
disturbance. What differs is that models are compared with one reference, and that blocks of one
round belong together: parts and decode steps follow each other within milliseconds. So the
bootstrap resamples whole rounds.

Three things keep verdicts honest. Intervals are simultaneous: the level is divided by the number
of verdicts and shared among the looks at the data (Bonferroni), since stopping when the result
pleases would inflate false ones. They are Student's, because the rounds are few. And the
reference runs a second time as a hidden A/A replicate: a difference counts only beyond what the
replicate shows. Models are compared with both of the two together: that halves what one of them
owes to its place in memory, and leaves the A/A difference an independent witness.

Windows of a text, and questions, are hard for all models alike: what one model has more of than
another scatters far less than either. So differences are taken window by window, and the interval
is that of their mean: its standard error from a bootstrap over the windows, its quantile
Student's, as above.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import exp, expm1, sqrt
from statistics import NormalDist
from typing import Literal

import numpy as np

from gacprof.core.fit import QUARTILE, Floats, Ints, two_way

LEVEL = 0.05
"""Of all verdicts of a bench together: the chance that any of them claims what is not there."""
FIRST_LOOK = 12
"""Rounds. Fewer tell too little of their own spread for a verdict."""
RESAMPLES = 200
NEGLIGIBLE = 0.01
"""A bench goes on until a difference is shown or cannot be larger than this."""

Difference = Literal["faster", "slower", "no difference shown"]


@dataclass(frozen=True)
class WorkloadFit:
    """The models of one workload, by column. ``log_ratio`` and its standard ``error`` are against
    the reference; latencies are at the lower quartile of the blocks, with 95 % bootstrap intervals.

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
    """Fit times [calls, models] in µs, or [parts, calls, models] where calls were timed in parts;
    ``rounds`` numbers the round of each call. A part of all models is a block, and a model's
    latency the sum of its parts'. ``replicate`` says whether the last column is the reference's.

    Raises ``ValueError`` for fewer than two rounds.
    """
    numbers, which = np.unique(np.asarray(rounds), return_inverse=True)
    if len(numbers) < 2:
        raise ValueError("an interval needs at least two rounds")
    log_us = np.log(us.reshape(-1, *us.shape[-2:]))
    effect, block = two_way(log_us)
    level = np.quantile(block, QUARTILE, axis=-1)[:, None]
    # Fitted anew to every resample: with few columns the block effects are much of the error.
    rest = log_us - block[..., None]
    told, against = _together(us.shape[-1], replicate)
    whole = _whole(effect + level)
    latency = told @ whole
    compared, drawn = [], []
    for chosen in _resampled(which, seed):
        again = two_way(rest[:, chosen])[0]
        levels = np.quantile(block[:, chosen], QUARTILE, axis=-1)[:, None]
        compared.append(_whole(again + level))
        drawn.append(told @ _whole(again + levels))
    low, high = np.quantile(drawn, (0.025, 0.975), axis=0) - latency
    # The bootstrap variance of n values is (n − 1)/n of the sample's.
    scatter = np.array(compared) @ against.T
    error = scatter.std(axis=0) * sqrt(len(numbers) / (len(numbers) - 1))
    return WorkloadFit(
        np.exp(latency),
        np.exp(latency + np.minimum(low, 0.0)),
        np.exp(latency + np.maximum(high, 0.0)),
        against @ whole,
        error,
        len(numbers),
    )


def _together(models: int, replicate: bool) -> tuple[Floats, Floats]:
    """What is told of the models' log latencies, as weights [told, models]: each latency, and each
    ratio."""
    one = np.eye(models)
    reference = (one[0] + one[-1]) / 2 if replicate else one[0]
    latencies, ratios = one.copy(), one - reference
    latencies[0], ratios[0] = reference, 0.0
    if replicate:
        ratios[-1] = one[-1] - one[0]
    return latencies, ratios


def _whole(log_us: Floats) -> Floats:
    """The log of the models' sums, from the logs of their parts [parts, models]."""
    return np.asarray(np.log(np.exp(log_us).sum(axis=0)))


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
    """The level of a single interval, so that :data:`LEVEL` is that of all together. Half of it is
    for the end, the looks before (``early``) share the other half."""
    before = len(looks(most_rounds)) - 1
    level = LEVEL / max(1, verdicts)
    if not before:
        return level
    return level / 2 / before if early else level / 2


def half_width(error: float, rounds: int, level: float) -> float:
    """Half the width of a two-sided interval on a log ratio."""
    return float(error) * student(1 - level / 2, rounds - 1)


def student(p: float, degrees: float) -> float:
    """The quantile of Student's t (Abramowitz & Stegun 26.7.5; 1 % off at worst from 6 degrees
    and p = 0.9995 on)."""
    x, n = NormalDist().inv_cdf(p), degrees
    terms = (
        (x**3 + x) / (4 * n),
        (5 * x**5 + 16 * x**3 + 3 * x) / (96 * n**2),
        (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / (384 * n**3),
        (79 * x**9 + 776 * x**7 + 1482 * x**5 - 1920 * x**3 - 945 * x) / (92160 * n**4),
    )
    return x + sum(terms)


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
"""Windows or questions. The approximation of Student's quantile is good from 6 degrees of
freedom on, and fewer differences say little of their own spread."""

QUALITY_RESAMPLES = 2000
SEED = 0

Finding = Literal["better", "worse", "no difference shown"]


@dataclass(frozen=True)
class Change:
    """A model against the first one: the difference and its interval, as shares.

    Of a perplexity it is ratio − 1, of an accuracy the difference. ``finding`` says what the
    interval excludes; where it says *no difference shown*, ``low`` and ``high`` say how large one
    could still be.
    """

    low: float
    value: float
    high: float
    finding: Finding


def perplexity_change(
    nll: Floats, reference: Floats, tokens: Floats, level: float
) -> Change | None:
    """Of the perplexity, from the negative log-likelihoods [windows] and predictions of each.

    None for fewer than :data:`FEWEST` windows, and where anything is not finite.
    """
    found = _paired(nll - reference, tokens, level)
    if found is None:
        return None
    low, value, high = (expm1(log) for log in found)
    return Change(low, value, high, _finding(-high, -low))


def accuracy_change(right: Floats, reference: Floats, level: float) -> Change | None:
    """Of the accuracy, from which questions [0 or 1 each] the two models get right."""
    found = _paired(right - reference, np.ones_like(right), level)
    if found is None:
        return None
    low, value, high = found
    return Change(low, value, high, _finding(low, high))


def _paired(difference: Floats, weight: Floats, level: float) -> tuple[float, float, float] | None:
    """Σ difference / Σ weight with its interval at ``level`` (0.05 for 95 %)."""
    n = len(difference)
    if n < FEWEST or not np.isfinite(difference).all():
        return None
    value = float(difference.sum() / weight.sum())
    drawn = np.random.default_rng(SEED).multinomial(n, np.full(n, 1 / n), size=QUALITY_RESAMPLES)
    means = (drawn @ difference) / (drawn @ weight)
    # The bootstrap variance of n values is (n − 1)/n of the sample's.
    half = half_width(float(means.std()) * sqrt(n / (n - 1)), n, level)
    return value - half, value, value + half


def _finding(gain_low: float, gain_high: float) -> Finding:
    if gain_low > 0:
        return "better"
    return "worse" if gain_high < 0 else "no difference shown"
