"""Statistics of randomised blocks: the two-way fit and its errors.

A block calls every slot of a curve once, within tens of milliseconds. The logarithm of a call's
time is taken as *slot effect + block effect + disturbance*. Whatever slows the machine for the
length of a block slows all its calls alike and goes into the block effect; what disturbs single
calls only ever adds time. So both effects are lower quartiles of the residuals, found by polishing
rows and columns in turn. On recorded noise that is as good as median polish, and on a busy machine
far better than most estimators (reports/noise.md).

Errors have two components of variance. *Within* processes it is that of a sample quartile (Maritz
and Jarrett 1978), moderated over the curve's slots by a prior that is estimated from them (Smyth
2004, limma): few calls now and then lie close together by chance. *Between* processes it is one
variance for all slots of the curve, by the moments of an analysis of variance. Each has its degrees
of freedom, and their sum has Satterthwaite's (1946): whoever judges by these errors takes Student's
t (:func:`gacprof.stats.judge.judge`).

References: Tukey, *Exploratory Data Analysis* (1977), ch. 11, two-way fits by polishing; Maritz and
Jarrett, JASA 73 (1978), 194; Smyth, Stat. Appl. Genet. Mol. Biol. 3 (2004), 1.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from math import exp, log

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

QUARTILE = 0.25
SWEEPS = 10
"""Alternations of rows and columns. Quantile polishing has no exact fixed point; the steps are
below 10⁻³ of the noise by then."""
FEWEST_BLOCKS = 4
"""Below that a slot's spread is unknown: its standard error is infinite."""
QUARTILE_DEGREES = 1.2
"""Degrees of freedom of the estimated variance of a quartile of n values, over √n: of normal
samples of 6 to 24 values 1.25 to 1.42, of 48 to 400 1.1 to 0.9 (from the variance of its log)."""
LEAST_FREEDOM = 12
"""Degrees of freedom below which the variance between processes has no bound: an effect that
strikes single slots is not seen on few of them."""
LEAST_EXCESS = 1e-4
"""Of the variance of log variances beyond chance: the prior's degrees of freedom are 20,000 there,
as good as infinite."""


@dataclass(frozen=True)
class Fit:
    """The slots of one curve, each beside its standard error.

    ``effect`` are log latencies in microseconds at the curve's own level (the lower quartile of
    its blocks), NaN for a slot that was never called. ``error`` are standard errors of differences
    *within* the curve, with their ``degrees`` of freedom; infinite for a slot of fewer than
    :data:`FEWEST_BLOCKS` calls and for one that no block ties to most others. ``between`` is the
    variance of a slot between processes, ``between_most`` its upper 95 % bound (all that processes
    differ by taken for theirs; infinite of few slots or one process), ``residual`` what each call
    leaves, in the shape of the input.
    """

    effect: Floats
    error: Floats
    degrees: Floats
    counts: Ints
    residual: Floats
    between: float
    between_most: float

    @property
    def latency_us(self) -> Floats:
        return np.exp(self.effect)


def fit_blocks(log_us: Floats, process: Sequence[int] | Ints | None = None) -> Fit:
    """Fit a matrix of log times [blocks, slots]; NaN where a block did not hold a slot.

    ``process`` numbers the process that each block ran in.
    Raises ``ValueError`` for a matrix without rows or columns.
    """
    if log_us.ndim != 2 or 0 in log_us.shape:
        raise ValueError(f"a fit needs blocks and slots, not a matrix of shape {log_us.shape}")
    processes = np.zeros(len(log_us), np.int64) if process is None else np.asarray(process)
    effect, block = two_way(log_us)
    residual = log_us - effect - block[:, None]
    counts = np.sum(~np.isnan(log_us), axis=0)
    known = (counts >= FEWEST_BLOCKS) & _tied_together(~np.isnan(log_us))
    error, degrees = np.full(len(effect), np.inf), np.zeros(len(effect))
    between, most = 0.0, np.inf
    if known.any():
        within, own = moderated(
            quartile_variance(residual[:, known]), QUARTILE_DEGREES * np.sqrt(counts[known])
        )
        between, most, freedom, shares = _between_processes(residual[:, known], processes, within)
        variance = within + between * shares
        error[known] = np.sqrt(variance)
        with np.errstate(divide="ignore", invalid="ignore"):
            sums = within**2 / own + (between * shares) ** 2 / freedom
            degrees[known] = np.where(variance > 0, variance**2 / sums, np.inf)
    level = float(np.nanquantile(block, QUARTILE))
    return Fit(effect + level, error, degrees, counts, residual, between, most)


def _tied_together(held: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which slots share blocks with most others, directly or through others; slots of two sweeps
    may not: only the machine's level would compare them."""
    ever = held.any(axis=0)
    if np.any(held[:, ever].all(axis=1)):
        return np.asarray(ever)
    from scipy.sparse.csgraph import connected_components  # slow to import

    shared = held.astype(np.float32)
    _, group = connected_components(shared.T @ shared)
    return np.asarray(group == np.bincount(group[ever]).argmax())


def two_way(log_us: Floats) -> tuple[Floats, Floats]:
    """(slot effects, block effects) of a matrix of log times [blocks, slots] with gaps, or of each
    of several [..., blocks, slots]."""
    # From the slots' medians: polishing has other fixed points, and from zeros it may end in one
    # that takes what slows a quarter of the slots in a third of the blocks for the blocks' own.
    slot, block = _quantile_over(log_us, -2, 0.5), np.zeros(log_us.shape[:-1])
    rest = log_us - slot[..., None, :]
    for _ in range(SWEEPS):
        step = _quantile_over(rest, -1, QUARTILE)
        rest -= step[..., None]
        block += step
        step = _quantile_over(rest, -2, QUARTILE)
        rest -= step[..., None, :]
        slot += step
    slot[np.all(np.isnan(log_us), axis=-2)] = np.nan
    return slot, block


def _quantile_over(values: Floats, axis: int, q: float) -> Floats:
    moved = np.moveaxis(values, axis, 0)
    return quantile(moved.reshape(len(moved), -1), q).reshape(moved.shape[1:])


@contextmanager
def gaps() -> Iterator[None]:
    """numpy need not warn of slots without any call: what comes of them is NaN, as it should."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


def lower_quartile(values: Floats) -> Floats:
    """The lower quartile of each column, gaps left out; NaN for an empty column."""
    found = quantile(values, QUARTILE)
    found[np.all(np.isnan(values), axis=0)] = np.nan
    return found


def quantile(values: Floats, q: float) -> Floats:
    """The quantile of each column, gaps left out; 0 for an empty one. Much faster than
    ``np.nanquantile``."""
    if not len(values):
        return np.zeros(values.shape[1])
    ordered = np.sort(values, axis=0)
    counts = np.sum(~np.isnan(ordered), axis=0)
    place = q * np.maximum(counts - 1, 0)
    low = np.floor(place).astype(np.int64)
    high = np.minimum(low + 1, np.maximum(counts - 1, 0))
    column = np.arange(values.shape[1])
    a, b = ordered[low, column], ordered[high, column]
    return np.where(counts > 0, a + (place - low) * (b - a), 0.0)


def quartile_variance(values: Floats) -> Floats:
    """The variance of each column's lower quartile, gaps left out (Maritz and Jarrett 1978): what a
    bootstrap of infinitely many resamples would find. 0 for fewer than two values."""
    ordered = np.sort(values, axis=0)
    counts = np.sum(~np.isnan(ordered), axis=0)
    found = np.zeros(values.shape[1])
    for n in np.unique(counts[counts > 1]).tolist():
        here = counts == n
        weights, ranked = _order_weights(n), ordered[:n, here]
        found[here] = np.maximum(weights @ ranked**2 - (weights @ ranked) ** 2, 0.0)
    return found


@lru_cache(maxsize=1024)
def _order_weights(n: int) -> Floats:
    """How likely each of n ordered values is a resample's lower quartile."""
    from scipy.special import betainc  # scipy is of the extra "measure": help and lists go without

    rank = QUARTILE * (n - 1) + 1
    return np.asarray(np.diff(betainc(rank, n - rank + 1, np.arange(n + 1) / n)))


def moderated(variance: Floats, degrees: Floats) -> tuple[Floats, Floats]:
    """Variances drawn towards their common prior, and degrees of freedom with the prior's (Smyth
    2004): how far follows from how much they differ beyond chance.

    ``degrees`` are those of each variance, above 0. The prior's are infinite where the variances
    differ by no more than chance.
    """
    from scipy.special import digamma, polygamma

    typical = float(np.median(variance)) or float(np.mean(variance))
    if typical == 0:  # a device that repeats itself exactly
        return variance, np.full(len(variance), np.inf)
    logs = np.log(np.maximum(variance, 1e-5 * typical))  # as limma does
    logs += np.log(degrees / 2) - digamma(degrees / 2)
    spread = float(np.var(logs, ddof=1)) if len(logs) > 1 else np.inf
    excess = spread - float(np.mean(polygamma(1, degrees / 2)))
    if not np.isfinite(excess):  # one slot has no others
        return variance, degrees
    if excess <= LEAST_EXCESS:
        return np.full(len(variance), exp(np.mean(logs))), np.full(len(variance), np.inf)
    half = _trigamma_inverse(excess)
    prior = exp(float(np.mean(logs)) + float(digamma(half)) - log(half))
    mixed = (2 * half * prior + degrees * variance) / (2 * half + degrees)
    return mixed, degrees + 2 * half


def _trigamma_inverse(x: float) -> float:
    """By Newton's method on 1/trigamma, which is nearly linear (Smyth 2004, appendix)."""
    from scipy.special import polygamma

    y = 0.5 + 1 / x
    for _ in range(20):
        trigamma = float(polygamma(1, y))
        y += trigamma * (1 - trigamma / x) / float(polygamma(2, y))
    return y


def _between_processes(
    residual: Floats, processes: Ints, within: Floats
) -> tuple[float, float, float, Floats]:
    """The variance of a slot between processes beyond what its blocks explain, its upper 95 %
    bound, its degrees of freedom, and for each slot Σ share² of its calls over the processes.

    One variance for all slots: what an analysis of variance finds, the mean over those that several
    processes called. 0 for a single process.
    """
    from scipy.special import chdtri

    numbers = np.unique(processes)
    held = np.array([np.sum(~np.isnan(residual[processes == p]), axis=0) for p in numbers])
    share = held / held.sum(axis=0)
    squares = np.sum(share**2, axis=0)
    several = squares < 1
    if not several.any():
        return 0.0, np.inf, 1.0, squares
    means = np.array([lower_quartile(residual[processes == p][:, several]) for p in numbers])
    with gaps():
        means -= np.nanmedian(means, axis=1)[:, None]
    means, share = np.nan_to_num(means), share[:, several]
    apart = np.sum(share * (means - np.sum(share * means, axis=0)) ** 2, axis=0)
    groups = np.sum(held > 0, axis=0)[several] - 1
    chance, weight = within[several] * groups, 1 - squares[several]
    freedom = max(1.0, float(groups.sum()) - groups.max())
    between = max(0.0, float(np.mean((apart - chance) / weight)))
    if freedom < LEAST_FREEDOM:
        return between, np.inf, freedom, squares
    most = float(apart.sum() / weight.sum()) * freedom / float(chdtri(freedom, 0.95))
    return between, most, freedom, squares
