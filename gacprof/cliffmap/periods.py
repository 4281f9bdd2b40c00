"""Find what repeats along an axis: which modulus, and which residues fare alike.

No modulus is preferred for being a power of two. For each one, a dim's latency is compared
with the mean of one whole period around it, and that ratio is predicted from the *other*
dims of the same residue. What is predicted is explained; noise cannot be predicted, a ramp is
its own mean, and a cliff happens once, so none of them passes for a period.

Where many dims are missing, the mean depends on which residues were measured nearby. There the
mean and the residues' effects are fitted in turn, to one half of the dims, and predict the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from math import exp, hypot, log1p
from statistics import median

import numpy as np
from numpy.typing import NDArray

from gacprof.cliffmap.detect import finest_step
from gacprof.cliffmap.schema import Period, ResidueClass
from gacprof.core.fit import quantile

Array = NDArray[np.float64]

LARGEST_MODULUS = 256
"""The largest tile edge among the kernels of cuBLAS and FlashAttention-2."""

REPEATS = 3
"""A modulus must fit this often into the number of dims before anything is said of it."""

DENSE = 0.7
"""From this share of its dims on, a curve has each residue around nearly every dim."""

REFUTED, NEXT = 0.15, 1.25
"""Cliffs let single dims seem to be of another class. Farther away growth explains too much."""

FEWEST = 4
"""Dims of a class, where many are missing: two or three may be good for another reason."""

FITS = 8
"""How often the mean and the residues' effects are fitted in turn, where many dims are missing."""

LEAST_EXPLAINED = 0.2
"""The published curves with a period have 0.4–0.96. Of pure noise 0.11 is explained by chance at
a hundred dims, and up to 0.37 at twenty, where classes that differ by more than the floor are
the stricter demand."""

TIE = 0.01
"""Moduli that explain the curve this nearly as well tie: the one with more classes is taken."""

RIVAL = 0.1
"""Where many dims are missing, a modulus that explains the curve this nearly as well, and is
neither a multiple nor a divisor of the best, leaves open which of them it is."""

CERTAIN = 3.0
"""Classes differ by so many standard errors of their residues at least."""

MAD = 1.86
"""From the median absolute deviation of normal values to √n times the standard error of their
median: 1.4826 · 1.2533."""


def find_period(d: Sequence[int], latency: Sequence[float], floor: float) -> Period | None:
    """The modulus that explains the curve best, with its residue classes; None if none does.

    Classes differ by more than ``floor``, and the modulus is the smallest that separates them;
    each holds a residue that several dims were measured of, for one dim alone predicts nothing.
    Dims may have any spacing; a modulus is a multiple of the sweep's finest step.
    """
    step = finest_step(d)
    places = (np.asarray(d) - d[0]) // step
    if places[-1] >= 64 * len(d):  # too sparse for any period to show, and a huge array
        return None
    logs = np.full(int(places[-1]) + 1, np.nan)
    logs[places] = np.log(latency)
    moduli = range(2, min(LARGEST_MODULUS // step, len(d) // REPEATS) + 1)
    explained = {modulus: _explained(logs, modulus) for modulus in moduli}
    best = max(explained.values(), default=0.0)
    if best < LEAST_EXPLAINED:
        return None
    found = [
        _period(logs, modulus, d[0], step, floor, share)
        for modulus, share in explained.items()
        if share >= best - TIE
    ]
    repeated = [period for period in found if _repeats(period, d, _sparse(logs))]
    period = max(repeated, key=lambda p: (len(p.classes), -p.modulus), default=None)
    if period is None or len(period.classes) < 2:
        return None
    rivals = [m * step for m, share in explained.items() if share >= best - RIVAL]
    unsure = any(m % period.modulus and period.modulus % m for m in rivals)
    if _sparse(logs) and (unsure or _refuted(period, d, latency)):
        return None
    return period


def _repeats(period: Period, d: Sequence[int], sparse: bool) -> bool:
    """Whether each class has a residue that was measured repeatedly and, where many dims are
    missing, :data:`FEWEST` dims."""
    measured = Counter(size % period.modulus for size in d)
    counts = [[measured[r] for r in c.remainders] for c in period.classes]
    return all(max(each) > 1 and (sum(each) >= FEWEST or not sparse) for each in counts)


def _refuted(period: Period, d: Sequence[int], latency: Sequence[float]) -> bool:
    """Whether more than :data:`REFUTED` of the dims are not as their class says.

    A dim is compared with the next one of the best class above it, within :data:`NEXT`: it takes
    its class's ratio of that one's time, less what the growth of the work explains at most. Half
    the way to the nearest other class is too far.
    """
    ratio = {r: c.ratio for c in period.classes for r in c.remainders}
    half = min(b.ratio / a.ratio for a, b in pairwise(period.classes)) ** 0.5
    best = [i for i, size in enumerate(d) if size % period.modulus in period.classes[0].remainders]
    wrong = compared = 0
    for i, size in enumerate(d):
        above = next((k for k in best if k > i and d[k] <= NEXT * size), None)
        if above is None:
            continue
        compared += 1
        seen = latency[i] / latency[above] / ratio[size % period.modulus]
        wrong += not size / d[above] / half < seen < half
    return wrong > REFUTED * compared


def _period(
    logs: Array, modulus: int, first: int, step: int, floor: float, explained: float
) -> Period:
    effects = _effects(logs, modulus)
    groups = _grouped(effects, floor)
    levels = [median(effects[place][0] for place in group) for group in groups]
    ratios = [round(exp(level - levels[0]), 4) for level in levels]
    smallest, remainders = _reduced(
        modulus * step,
        [{(first + place * step) % (modulus * step) for place in group} for group in groups],
    )
    classes = [
        ResidueClass(remainders=sorted(one), ratio=ratio)
        for one, ratio in zip(remainders, ratios, strict=True)
    ]
    return Period(modulus=smallest, classes=classes, explained=round(explained, 4))


def _against_period(logs: Array, modulus: int) -> Array:
    """Each log latency minus the mean over one period centred on it; by rows of a period.

    The mean is that of all residues alike, whichever were measured; NaN for a dim that is alone.
    """
    around = _Around(~np.isnan(logs), modulus, fewest=2)
    relative = logs - around.mean(logs)
    for _ in range(FITS if _sparse(logs) else 0):
        relative = logs - around.mean(logs - _by_residue(relative, modulus))
    return _rows(relative, modulus)


class _Around:
    """One period centred on each place of those that were measured (``known``).

    An even period has no middle: its two ends count half each.
    """

    def __init__(self, known: NDArray[np.bool_], modulus: int, fewest: int = 1) -> None:
        self.known, self.half = known, modulus // 2
        self.weights = np.ones(2 * self.half + 1)
        if modulus % 2 == 0:
            self.weights[[0, -1]] = 0.5
        ones = np.ones(2 * self.half + 1)
        self.enough = self._sum(known.astype(float), ones) > fewest - 0.5
        self.count = np.maximum(self._sum(known.astype(float), self.weights), 0.5)

    def mean(self, logs: Array) -> Array:
        """NaN where fewer than ``fewest`` were measured."""
        total = self._sum(np.where(self.known, logs, 0.0), self.weights)
        return np.where(self.enough, total / self.count, np.nan)

    def _sum(self, values: Array, weights: Array) -> Array:
        return np.convolve(values, weights)[self.half : self.half + len(values)]


def _sparse(logs: Array) -> bool:
    return bool(np.mean(~np.isnan(logs)) < DENSE)


def _by_residue(relative: Array, modulus: int) -> Array:
    """At each place the median of its residue, 0 where that was not measured; 0 on average."""
    rows = _rows(relative, modulus)
    each, known = np.tile(quantile(rows, 0.5), len(rows)), ~np.isnan(relative)
    each = each[: len(relative)]
    return np.asarray(each - each[known].mean()) if known.any() else each


def _rows(values: Array, modulus: int) -> Array:
    padded = np.full(-(-len(values) // modulus) * modulus, np.nan)
    padded[: len(values)] = values
    return padded.reshape(-1, modulus)


def _explained(logs: Array, modulus: int) -> float:
    """1 − Σ|relative − median of the others of its residue| / Σ|relative|."""
    if _sparse(logs):
        return _foretold(logs, modulus)
    relative = _against_period(logs, modulus)
    total = np.nansum(np.abs(relative))
    if total == 0:
        return 0.0
    return float(1 - np.nansum(np.abs(relative - _median_of_others(relative))) / total)


def _foretold(logs: Array, modulus: int) -> float:
    """The same where many dims are missing: a period that is fitted to every other dim of each
    residue foretells the rest better than the mean of those around does, by this share."""
    measured = _rows(~np.isnan(logs) * 1.0, modulus)
    turn = (np.cumsum(np.nan_to_num(measured), axis=0) % 2).ravel()[: len(logs)]
    plain = fitted = 0.0
    for half in (0, 1):
        known, asked = (np.where(turn == part, logs, np.nan) for part in (half, 1 - half))
        if np.isnan(known).all():
            continue
        around = _Around(~np.isnan(known), modulus)
        mean = around.mean(known)
        effects = _by_residue(_against_period(known, modulus).ravel()[: len(logs)], modulus)
        better = around.mean(known - effects) + effects
        plain += float(np.nansum(np.abs(asked - mean)))
        fitted += float(np.nansum(np.abs(asked - better)))
    return float(1 - fitted / plain) if plain else 0.0


def _median_of_others(table: Array) -> Array:
    """For each entry the median of its column without it; 0 where it is alone."""
    order = np.argsort(table, axis=0)  # NaN last
    rank = np.argsort(order, axis=0)
    ordered = np.take_along_axis(table, order, axis=0)
    n = np.sum(~np.isnan(table), axis=0)
    others = n - 1
    # Of the n-1 others in order, the middle ones; those at or after the entry's own rank
    # stand one further down in the full column.
    lower, upper = np.maximum((others - 1) // 2, 0), others // 2
    picked = [
        np.take_along_axis(ordered, np.minimum(m + (m >= rank), len(table) - 1), axis=0)
        for m in (np.broadcast_to(lower, table.shape), np.broadcast_to(upper, table.shape))
    ]
    return np.where(others > 0, (picked[0] + picked[1]) / 2, 0.0)


def _effects(logs: Array, modulus: int) -> dict[int, tuple[float, float]]:
    """Place on the axis (mod the period) → median log effect and its standard error; places never
    measured are absent."""
    relative = _against_period(logs, modulus)
    apart = relative.ravel() - _by_residue(relative.ravel(), modulus)
    spread = MAD * float(np.nanmedian(np.abs(apart - np.nanmedian(apart))))
    columns = ((i, column[~np.isnan(column)]) for i, column in enumerate(relative.T))
    return {i: (float(np.median(c)), spread / len(c) ** 0.5) for i, c in columns if len(c)}


def _grouped(effects: dict[int, tuple[float, float]], floor: float) -> list[list[int]]:
    """Places in groups whose effects follow one another within the floor, fastest first."""
    ordered = sorted(effects, key=lambda place: effects[place])
    groups = [[ordered[0]]]
    for before, place in pairwise(ordered):
        (a, error_a), (b, error_b) = effects[before], effects[place]
        if b - a > max(log1p(floor), CERTAIN * hypot(error_a, error_b)):
            groups.append([])
        groups[-1].append(place)
    return groups


def _reduced(modulus: int, classes: list[set[int]]) -> tuple[int, list[set[int]]]:
    """The same classes by the smallest divisor of the modulus that separates them."""
    for smaller in (m for m in range(2, modulus) if modulus % m == 0):
        merged = [{r % smaller for r in remainders} for remainders in classes]
        if sum(map(len, merged)) == len(set().union(*merged)):
            return smaller, merged
    return modulus, classes
