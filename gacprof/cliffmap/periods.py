"""What repeats along an axis: dims by the power of two that divides them.

Vector loads, tensor-core fragments and tiles ask for multiples of powers of two, up to the largest
tile edge of cuBLAS and FlashAttention-2 (256). So the question is which of the groups
gcd(d, 256) = 1, 2, 4 … 256 fare alike, and the answer an analysis of variance of log latency with
the groups as treatment and stretches of the axis as blocks: within a stretch of
:data:`STRETCH` steps latency follows a power of the dim (analysis of covariance). Cliffs are
outliers of it. The groups are split in two where that explains most, and each half likewise, as
long as a split is significant (:data:`LEVEL`) and explains :data:`LEAST_EXPLAINED` of what happens
within stretches. A staircase whose steps are no powers of two, such as tiles of 24 or 96, has no
period here, and its dims are judged one by one as all others are.

Reference: Fisher, *The Design of Experiments* (1935), blocks and covariates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, gcd, log1p
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray
from scipy.special import fdtrc

from gacprof.cliffmap.detect import finest_step
from gacprof.cliffmap.schema import Period, ResidueClass

Array = NDArray[np.float64]
Ints = NDArray[np.int64]

LARGEST = 256
LEVEL = 5e-3
"""The chance that noise alone makes a period of a curve (Bonferroni over the places to split)."""
LEAST_EXPLAINED = 0.3
"""Of the variance within stretches, by each split. Those of the published curves explain 0.44 to
0.99; the sawtooth of a staircase of whole tiles 0.2, noise of a hundred dims 0.05."""
LEAST_DROP = 0.25
"""Of the effect, what shows between an aligned dim and the one below it. In a staircase of whole
tiles nothing does, beside the published attention's 0.47 and more."""
STRETCH = 64
"""In steps of the sweep: four periods of the commonest modulus, 16, and little growth."""
DENSE = 0.7
"""The share of a stretch that was measured, else it does not count. Of the few dims that
``sweep --for`` measures around a size most are chosen for the powers of two that divide them."""
FEWEST = 3
"""Dims on either side of a split: of fewer nothing is known of what they differ by."""
OUTLIER, MOST_OUTLIERS = 4.0, 0.1
"""Deviations of so many standard deviations (by the median absolute one) are cliffs: of normal
noise 1 in 16,000 is as large. More than a tenth of the dims are none: they are a class."""


def find_period(d: Sequence[int], latency: Sequence[float], floor: float = 0.0) -> Period | None:
    """The groups that fare differently, as residue classes of the smallest modulus that tells them
    apart; None where none do. Neighbouring classes differ by more than ``floor`` (a fraction)."""
    if len(d) < 2 * FEWEST:
        return None
    axis = _Axis.of(d, latency)
    split = axis.splits(log1p(floor))
    fit = axis.classes(split)
    if fit is None:
        return None
    effects = fit.effects
    modulus = split[-1][0]
    members = [{size % modulus for size in d if gcd(size, LARGEST) in own} for own in split]
    classes = [
        ResidueClass(remainders=sorted(remainders), ratio=round(exp(effect - min(effects)), 4))
        for effect, remainders in sorted(zip(effects, members, strict=True), key=itemgetter(0))
    ]
    return Period(modulus=modulus, classes=classes, explained=round(fit.explained, 4))


@dataclass(frozen=True)
class _Axis:
    """Dims in stretches that were measured densely, each with its group and log latency."""

    d: Array
    y: Array
    group: Ints
    stretch: Ints

    @classmethod
    def of(cls, d: Sequence[int], latency: Sequence[float]) -> _Axis:
        step = finest_step(d)
        place = (np.asarray(d) - d[0]) // step
        stretch = place // STRETCH
        steps = np.minimum(STRETCH, place[-1] + 1 - stretch * STRETCH)
        dense = np.bincount(stretch)[stretch] >= DENSE * steps
        group = np.array([gcd(size, LARGEST) for size in d])
        return cls(*(each[dense] for each in (np.asarray(d), np.log(latency), group, stretch)))

    def part(self, kept: NDArray[np.bool_]) -> _Axis:
        return _Axis(self.d[kept], self.y[kept], self.group[kept], self.stretch[kept])

    def splits(self, floor: float) -> list[list[int]]:
        """The groups, ascending, in classes that fare differently: halved where that explains most,
        and each half likewise, as long as it explains enough."""
        levels = np.unique(self.group).tolist()
        places = levels[1:]
        whole = {at: fit for at in places if (fit := self._two_classes(at, trimmed=False))}
        at = max(whole, key=lambda each: whole[each].explained, default=0)
        fit = self._two_classes(at) if at else None
        if (
            fit is None
            or fit.explained < LEAST_EXPLAINED
            or fit.p > LEVEL / len(places)
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

    def _two_classes(self, at: int, trimmed: bool = True) -> _Fit | None:
        """Of the groups below ``at`` and from there on."""
        upper = self.group >= at
        if min(upper.sum(), (~upper).sum()) < FEWEST:
            return None
        return self._fitted(upper.astype(int), 2) if trimmed else _analysis(self, upper * 1, 2)

    def classes(self, split: list[list[int]]) -> _Fit | None:
        """The fit of all these classes together."""
        which = np.array([next(i for i, c in enumerate(split) if g in c) for g in self.group])
        return self._fitted(which, len(split)) if len(split) > 1 else None

    def _fitted(self, which: Ints, classes: int) -> _Fit | None:
        """Fitted twice: the second time without the outliers of the first. None where stretches and
        classes cannot be told apart."""
        kept, fit = np.ones(len(self.y), bool), None
        for _ in range(2):
            fit = _analysis(self.part(kept), which[kept], classes)
            if fit is None:
                return None
            deviation = np.abs(fit.residual)
            good = deviation <= max(OUTLIER * 1.4826 * float(np.median(deviation)), 1e-9)
            if good.all() or np.mean(~good) > MOST_OUTLIERS:
                break
            kept[np.flatnonzero(kept)[~good]] = False
        return fit


@dataclass(frozen=True)
class _Fit:
    """Effects of the classes (log, 0 for the first), the chance ``p`` that they are noise, and the
    share of the variance within stretches that they explain."""

    effects: list[float]
    p: float
    explained: float
    residual: Array


def _analysis(axis: _Axis, which: Ints, classes: int) -> _Fit | None:
    """An analysis of covariance: stretches as blocks, the log of the dim as covariate."""
    blocks = (axis.stretch[:, None] == np.unique(axis.stretch)) * 1.0
    plain = np.column_stack([blocks, np.log(axis.d / axis.d[0])])
    design = np.column_stack([plain, *((which == place) * 1.0 for place in range(1, classes))])
    degrees = len(axis.y) - design.shape[1]
    if degrees < 1 or np.linalg.matrix_rank(design) < design.shape[1]:
        return None
    full, before = (np.linalg.lstsq(x, axis.y, rcond=None)[0] for x in (design, plain))
    residual = axis.y - design @ full
    whole = float(np.sum((axis.y - plain @ before) ** 2))
    left = max(
        float(residual @ residual), 1e-18 * len(axis.y)
    )  # a device may repeat itself exactly
    ratio = (whole - left) / (classes - 1) / (left / degrees)
    return _Fit(
        [0.0, *full[plain.shape[1] :].tolist()],
        float(fdtrc(classes - 1, degrees, max(0.0, ratio))),
        1 - left / whole if whole > left else 0.0,
        residual,
    )
