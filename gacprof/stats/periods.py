"""What repeats along an axis: dims by the power of two that divides them.

Vector loads, tensor-core fragments and tiles ask for multiples of powers of two, up to the largest
tile edge of cuBLAS and FlashAttention-2 (256). So the question is which of the groups
gcd(d, 256) = 1, 2, 4 … 256 fare alike, and the answer an analysis of variance with the groups as
treatment. What latency does along the axis is taken out by differences: of each dim to the next,
with growth as covariate. Cliffs are outliers of these. The groups are split in two where that
explains most, and each half likewise, as long as a split is significant (:data:`SIGNIFICANCE`),
explains :data:`LEAST_EXPLAINED`, and makes aligned dims faster than the ones below them.
A staircase, of whatever steps, has no period, and its dims are judged one by one as all others are.

Reference: Fisher, *The Design of Experiments* (1935), blocks and covariates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, gcd, log1p
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from gacprof.stats.findings import Period, ResidueClass
from gacprof.stats.judge import finest_step

Array = NDArray[np.float64]
Ints = NDArray[np.int64]

LARGEST = 256
SIGNIFICANCE = 5e-3
"""The chance that noise alone makes a period of a curve (Bonferroni over the places to split)."""
LEAST_EXPLAINED = 0.3
"""Of the variance of steps, by each split. Those of the published curves explain 0.79 to 0.99, of
the recorded noise of a hundred dims 0.05."""
LEAST_DROP = 0.6
"""Of the effect, what shows between an aligned dim and the one below it: 0.72 to 1.27 on
the published curves where alignment is what counts, nothing in a staircase of whole tiles, 0.43 and
0.48 where both meet (the attention's steps of 32, each a template, within multiples of 8)."""
STRETCH, DENSE = 64, 0.7
"""Of so many steps of the sweep such a share was measured, else they do not count. Of the few dims
that ``sweep --for`` measures around a size most are chosen for the powers of two that divide
them."""
FEWEST = 3
"""Dims on either side of a split: of fewer nothing is known of what they differ by."""
OUTLIER, MOST_OUTLIERS = 4.0, 0.1
"""Deviations of so many standard deviations (by the median absolute one) are cliffs: of normal
noise 1 in 16,000 is as large. More than a tenth of the steps are none: they are a class."""
SHARED = 2.0
"""Neighbouring steps share a dim, and with it its noise: an effect's variance is up to twice what
independent steps would give (twice where aligned dims are every other one)."""


def find_period(d: Sequence[int], latency: Sequence[float], floor: float = 0.0) -> Period | None:
    """The groups that fare differently, as residue classes of the smallest modulus that tells them
    apart; None where none do. Neighbouring classes differ by more than ``floor`` (a fraction)."""
    if len(d) < 2 * FEWEST:
        return None
    axis = _Axis.of(d, latency)
    split = axis.splits(log1p(floor))
    fit = axis.fitted(split) if len(split) > 1 else None
    if fit is None:
        return None
    modulus = split[-1][0]
    members = [{size % modulus for size in d if gcd(size, LARGEST) in own} for own in split]
    ordered = sorted(zip(fit.effects, members, strict=True), key=itemgetter(0))
    return Period(
        modulus=modulus,
        classes=[
            ResidueClass(remainders=sorted(own), ratio=round(exp(effect - ordered[0][0]), 4))
            for effect, own in ordered
        ],
        explained=round(fit.explained, 4),
    )


@dataclass(frozen=True)
class _Fit:
    """Effects of the classes (log, 0 for the first), the chance ``p`` that they are noise, and the
    share of the variance of steps that they explain."""

    effects: list[float]
    p: float
    explained: float
    residual: Array


@dataclass(frozen=True)
class _Axis:
    """Dims that were measured densely, each with its group and log latency."""

    d: Array
    y: Array
    group: Ints

    @classmethod
    def of(cls, d: Sequence[int], latency: Sequence[float]) -> _Axis:
        place = (np.asarray(d) - d[0]) // finest_step(d)
        stretch = place // STRETCH
        _, here, count = np.unique(stretch, return_inverse=True, return_counts=True)
        steps = np.minimum(STRETCH, place[-1] + 1 - stretch * STRETCH)
        dense = count[here] >= DENSE * steps
        group = np.array([gcd(size, LARGEST) for size in d])
        return cls(np.asarray(d)[dense], np.log(latency)[dense], group[dense])

    def part(self, kept: NDArray[np.bool_]) -> _Axis:
        return _Axis(self.d[kept], self.y[kept], self.group[kept])

    def splits(self, floor: float) -> list[list[int]]:
        """The groups, ascending, in classes that fare differently: halved where that explains most,
        and each half likewise, as long as it explains enough."""
        levels = np.unique(self.group).tolist()
        tried = [
            (fit, at)
            for at in levels[1:]
            if (fit := self.fitted([[g for g in levels if g < at], [g for g in levels if g >= at]]))
        ]
        fit, at = max(tried, key=lambda each: each[0].explained, default=(None, 0))
        if (
            fit is None
            or fit.explained < LEAST_EXPLAINED
            or fit.p > SIGNIFICANCE / len(tried)
            or abs(fit.effects[1]) <= floor
            or self._is_staircase(upper := self.group >= at, fit.effects[1])
        ):
            return [levels]
        return self.part(~upper).splits(floor) + self.part(upper).splits(floor)

    def _is_staircase(self, upper: NDArray[np.bool_], effect: float) -> bool:
        """Whether dims of the upper class take what the one below them takes: they end a step, as
        whole tiles do, and are no faster for being aligned."""
        place = np.flatnonzero(upper[1:] & ~upper[:-1]) + 1
        return float(np.median(self.y[place] - self.y[place - 1])) / effect < LEAST_DROP

    def fitted(self, classes: list[list[int]]) -> _Fit | None:
        """An analysis of covariance of the steps from each dim to the next: the classes' effects,
        and growth with the log of the dim. Fitted a second time without the outliers of the first.
        None for a class of too few dims."""
        which = np.array([next(i for i, c in enumerate(classes) if g in c) for g in self.group])
        if len(which) < 2 or np.bincount(which, minlength=len(classes)).min() < FEWEST:
            return None
        gap = np.diff(self.d)
        neighbours = gap <= 2 * finest_step(self.d.tolist())
        change = (np.diff((which == c) * 1.0)[neighbours] for c in range(1, len(classes)))
        growth = np.diff(np.log(self.d))[neighbours]
        design, step = np.column_stack([growth, *change]), np.diff(self.y)[neighbours]
        fit = _regression(design, step)
        if fit is None:
            return None
        deviation = np.abs(fit.residual)
        good = deviation <= max(OUTLIER * 1.4826 * float(np.median(deviation)), 1e-9)
        if good.all() or np.mean(~good) > MOST_OUTLIERS:
            return fit
        return _regression(design[good], step[good])


def _regression(design: Array, step: Array) -> _Fit | None:
    """The first column is what the classes are tested beside. None where they are confounded."""
    from scipy.special import fdtrc

    classes, degrees = design.shape[1] - 1, len(step) - design.shape[1]
    if degrees < 1 or np.linalg.matrix_rank(design) < design.shape[1]:
        return None
    full, plain = (np.linalg.lstsq(x, step, rcond=None)[0] for x in (design, design[:, :1]))
    residual = step - design @ full
    whole = float(np.sum((step - design[:, :1] @ plain) ** 2))
    left = max(float(residual @ residual), 1e-18 * len(step))  # some repeat themselves exactly
    ratio = max(0.0, whole - left) / classes / (left / degrees) / SHARED
    return _Fit(
        [0.0, *full[1:].tolist()],
        float(fdtrc(classes, degrees, ratio)),
        max(0.0, 1 - left / whole) if whole > 0 else 0.0,
        residual,
    )
