"""Two models on the same text or questions: the difference, with an interval.

Windows of a text, and questions, are hard for all models alike: what one model has more of than
another scatters far less than either. So differences are taken window by window, and the interval
is that of their mean: its standard error from a bootstrap over the windows, its quantile
Student's, as in :mod:`gacprof.evaluation.comparison`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import expm1, sqrt
from typing import Literal

import numpy as np

from gacprof.core.fit import Floats
from gacprof.evaluation.comparison import half_width

FEWEST = 7
"""Windows or questions. The approximation of Student's quantile is good from 6 degrees of
freedom on, and fewer differences say little of their own spread."""

RESAMPLES = 2000
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
    drawn = np.random.default_rng(SEED).multinomial(n, np.full(n, 1 / n), size=RESAMPLES)
    means = (drawn @ difference) / (drawn @ weight)
    # The bootstrap variance of n values is (n − 1)/n of the sample's.
    half = half_width(float(means.std()) * sqrt(n / (n - 1)), n, level)
    return value - half, value, value + half


def _finding(gain_low: float, gain_high: float) -> Finding:
    if gain_low > 0:
        return "better"
    return "worse" if gain_high < 0 else "no difference shown"
