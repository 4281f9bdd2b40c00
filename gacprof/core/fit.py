"""Statistics of randomised blocks: the two-way fit, its intervals, and the A/A floor.

A block calls every slot of a curve once, within tens of milliseconds. The logarithm of a call's
time is taken as *slot effect + block effect + disturbance*. Whatever slows the machine for the
length of a block slows all its calls alike and goes into the block effect; what disturbs single
calls only ever adds time. So both effects are lower quartiles of the residuals, found by polishing
rows and columns in turn. On recorded noise that is as good as any other estimator on a quiet
machine and far better than most on a busy one (benchmarks/estimators.py compares it with median
polish, Hodges–Lehmann, minimum and median).

References: Tukey, *Exploratory Data Analysis* (1977), ch. 11, two-way fits by polishing;
Efron & Tibshirani, *An Introduction to the Bootstrap* (1993), §8, resampling of blocks.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import log

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

QUARTILE = 0.25
SWEEPS = 10
"""Alternations of rows and columns. Quantile polishing has no exact fixed point; the steps are
below 10⁻³ of the noise by then (benchmarks/estimators.py)."""
RESAMPLES = 200
AT_ONCE = 20_000
"""So many calls are resampled in one go: on small curves numpy's own start costs the most."""
FEWEST_BLOCKS = 4
"""Below that a slot's spread is unknown: its standard error is infinite."""
CONTENDED = 0.5
"""Where more of a curve's slots have too few undisturbed calls, its times are those of the
scheduler: all dims then look alike, and nothing looks noisy."""
FLOOR_QUANTILE = 0.95


BlockRow = dict[int, tuple[float, bool]]
"""A block by slot: the log of its time (µs), and whether the call was disturbed."""


def block_row(calls: Iterable[tuple[int, float, bool]]) -> BlockRow:
    """A block from its calls (slot, µs, disturbed) in the order made: of a slot's calls the first
    undisturbed one counts, else the last."""
    row: BlockRow = {}
    for slot, us, disturbed in calls:
        if slot not in row or row[slot][1]:
            row[slot] = log(us), disturbed
    return row


def log_matrix(rows: Sequence[BlockRow], slots: int) -> Floats:
    """Blocks as a matrix of log times [blocks, slots]; NaN where a block did not hold a slot.

    Disturbed calls are left out too: on a busy machine half of the calls may be of several times
    their length. Of a slot that has no others its shortest are kept, so few that its error stays
    unknown. Where that is most slots' case, all calls stay.
    """
    matrix, spoilt = np.full((len(rows), slots), np.nan), np.zeros((len(rows), slots), bool)
    for number, row in enumerate(rows):
        if row:
            matrix[number, list(row)], spoilt[number, list(row)] = zip(*row.values(), strict=True)
    if contended(rows, slots):
        return matrix
    for slot in np.flatnonzero((_undisturbed(rows, slots) == 0) & spoilt.any(axis=0)):
        spoilt[np.argsort(matrix[:, slot])[: FEWEST_BLOCKS - 1], slot] = False
    matrix[spoilt] = np.nan
    return matrix


def contended(rows: Sequence[BlockRow], slots: int) -> bool:
    """Whether disturbed calls have left too few others to most slots."""
    disturbed = any(flag for row in rows for _, flag in row.values())
    return disturbed and bool(np.mean(_undisturbed(rows, slots) < FEWEST_BLOCKS) > CONTENDED)


def _undisturbed(rows: Sequence[BlockRow], slots: int) -> Ints:
    """How many undisturbed calls each slot has."""
    found = (slot for row in rows for slot, (_, disturbed) in row.items() if not disturbed)
    return np.bincount(np.fromiter(found, np.int64), minlength=slots)


@dataclass(frozen=True)
class Fit:
    """The slots of one curve, each beside its standard error.

    ``effect`` are log latencies in microseconds at the curve's own level (the lower quartile of
    its blocks), NaN for a slot that was never called. ``error`` are standard errors of differences
    *within* the curve: bootstrap over blocks, and on top ``between``, each slot's variance between
    processes. ``residual`` are what each call leaves, in the shape of the input.
    """

    effect: Floats
    error: Floats
    counts: Ints
    residual: Floats
    between: Floats

    @property
    def latency_us(self) -> Floats:
        return np.exp(self.effect)


def fit_blocks(
    log_us: Floats, process: Sequence[int] | Ints | None = None, *, resamples: int = RESAMPLES
) -> Fit:
    """Fit a matrix of log times [blocks, slots]; NaN where a block did not hold a slot.

    ``process`` numbers the process that each block ran in: blocks are resampled within each.
    Raises ``ValueError`` for a matrix without rows or columns.
    """
    if log_us.ndim != 2 or 0 in log_us.shape:
        raise ValueError(f"a fit needs blocks and slots, not a matrix of shape {log_us.shape}")
    processes = np.zeros(len(log_us), np.int64) if process is None else np.asarray(process)
    parts = _tied_together(~np.isnan(log_us))
    if len(parts) > 1:
        return _fit_apart(log_us, processes, parts, resamples)
    effect, block = two_way(log_us)
    residual = log_us - effect - block[:, None]
    counts = np.sum(~np.isnan(log_us), axis=0)
    within = _moderated(_bootstrap_variance(residual, processes, resamples), counts)
    shares = _shares(log_us, processes)
    between = _between_processes(residual, processes, within, shares)
    error = np.sqrt(within + between * np.sum(shares**2, axis=0))
    error[counts < FEWEST_BLOCKS] = np.inf
    level = float(np.nanquantile(block, QUARTILE))
    return Fit(effect + level, error, counts, residual, between)


def _tied_together(held: NDArray[np.bool_]) -> list[Ints]:
    """Slots by the groups that blocks tie together; slots that were never called in the first."""
    group = np.zeros(held.shape[1], np.int64)
    ever = held.any(axis=0)
    called = np.flatnonzero(ever)
    if not np.any(held[:, called].all(axis=1)):
        group[called] = called
        for row in held:
            joined = np.unique(group[row])
            if len(joined) > 1:
                group[np.isin(group, joined) & ever] = joined[0]
    numbers = np.unique(group[called])
    group[~ever] = numbers[0] if len(numbers) else 0
    return [np.flatnonzero(group == number) for number in np.unique(group)]


def _fit_apart(log_us: Floats, processes: Ints, parts: Sequence[Ints], resamples: int) -> Fit:
    """Slots that share no block, as those of two sweeps may: nothing but the machine's level
    compares them, so the spread of that level goes into every error."""
    shape = log_us.shape[1]
    effect, error, between = np.full(shape, np.nan), np.full(shape, np.inf), np.zeros(shape)
    counts, residual = np.zeros(shape, np.int64), np.full(log_us.shape, np.nan)
    levels = []
    for slots in parts:
        rows = np.flatnonzero(~np.isnan(log_us[:, slots]).all(axis=1))
        cell = np.ix_(rows, slots)
        fit = fit_blocks(log_us[cell], processes[rows], resamples=resamples)
        effect[slots], error[slots], between[slots] = fit.effect, fit.error, fit.between
        counts[slots], residual[cell] = fit.counts, fit.residual
        levels.append(np.nanmedian(log_us[cell] - fit.effect, axis=1))
    spread = np.concatenate([level - np.median(level) for level in levels])
    error = np.hypot(error, 1.4826 * np.median(np.abs(spread)))
    return Fit(effect, error, counts, residual, between)


def two_way(log_us: Floats) -> tuple[Floats, Floats]:
    """(slot effects, block effects) of a matrix of log times [blocks, slots] with gaps, or of each
    of several [..., blocks, slots]."""
    # From the slots' medians: polishing has other fixed points, and from zeros it may end in one
    # that takes what slows a quarter of the slots in a third of the blocks for the blocks' own.
    slot, block = _along(log_us, -2, 0.5), np.zeros(log_us.shape[:-1])
    rest = log_us - slot[..., None, :]
    for _ in range(SWEEPS):
        step = _along(rest, -1, QUARTILE)
        rest -= step[..., None]
        block += step
        step = _along(rest, -2, QUARTILE)
        rest -= step[..., None, :]
        slot += step
    slot[np.all(np.isnan(log_us), axis=-2)] = np.nan
    return slot, block


def _along(values: Floats, axis: int, q: float) -> Floats:
    moved = np.moveaxis(values, axis, 0)
    return quantile(moved.reshape(len(moved), -1), q).reshape(moved.shape[1:])


def aa_floor(differences: Sequence[float] | Floats, weights: Floats | None = None) -> float:
    """The :data:`FLOOR_QUANTILE` of absolute log differences, each counted with its weight.

    Raises ``ValueError`` for none.
    """
    size = np.abs(np.asarray(differences, dtype=np.float64))
    if not len(size):
        raise ValueError("an A/A floor needs at least one pair")
    order = np.argsort(size)
    share = np.ones(len(size)) if weights is None else weights[order]
    passed = np.cumsum(share) / share.sum()
    return float(size[order][min(len(size) - 1, int(np.searchsorted(passed, FLOOR_QUANTILE)))])


def half_sample_differences(
    log_us: Floats,
    process: Sequence[int] | Ints,
    pairs: Sequence[tuple[int, int]],
    size: int | None = None,
) -> Floats:
    """A/A differences across processes, as two independent sweeps of this length would differ.

    ``pairs`` are columns (slot, replicate). The slot is taken from one half of the processes, the
    replicate from the other, both ways round, and the difference scaled from the halves to sweeps
    of ``size`` processes, by default as many as there are (a variance is inversely proportional to
    their number). With one process the halves are of its blocks. Empty where no pair was called in
    both halves.
    """
    processes = np.asarray(process)
    numbers = np.unique(processes)
    if len(numbers) < 2:
        processes, numbers = np.arange(len(processes)) % 2, np.arange(2)
    first = np.isin(processes, numbers[::2])
    odd, even = len(numbers[::2]), len(numbers[1::2])
    scale = np.sqrt(2 / (size or len(numbers)) / (1 / odd + 1 / even))
    effect, block = two_way(log_us)
    residual = log_us - effect - block[:, None]
    halves = [effect + lower_quartile(residual[chosen]) for chosen in (first, ~first)]
    # A half's slots may share an offset that the whole's blocks do not: only contrasts count.
    with gaps():
        halves = [half - np.nanmedian(half - effect) for half in halves]
    found = [scale * (a[i] - b[j]) for i, j in pairs for a, b in (halves, halves[::-1])]
    return np.array([d for d in found if not np.isnan(d)])


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
    low, high, along = _place(counts, q)
    column = np.arange(values.shape[1])
    a, b = ordered[low, column], ordered[high, column]
    return np.where(counts > 0, a + along * (b - a), 0.0)


def _place(counts: NDArray[np.integer], q: float) -> tuple[Ints, Ints, Floats]:
    """Between which two of so many sorted values their quantile lies, and how far along."""
    place = q * np.maximum(counts - 1, 0)
    low = np.floor(place).astype(np.int64)
    return low, np.minimum(low + 1, np.maximum(counts - 1, 0)), place - low


def _bootstrap_variance(residual: Floats, processes: Ints, resamples: int) -> Floats:
    """The variance of each slot's effect over resampled blocks, processes kept apart.

    Slots are sorted once; a resample then is how often each block counts. Equal to
    :func:`quantile` of ``residual[chosen]`` to the last bit, in a fraction of its time.
    """
    draw = np.random.default_rng(0)
    groups = [np.flatnonzero(processes == p) for p in np.unique(processes)]
    blocks = len(residual)
    most = max(1, int(np.sum(~np.isnan(residual), axis=0).max()))
    order = np.ascontiguousarray(np.argsort(residual, axis=0)[:most].T)  # [slots, calls], NaN last
    ordered = np.take_along_axis(residual.T, order, axis=1)
    order[np.isnan(ordered)] = blocks  # which no resample holds
    slots = np.arange(len(ordered))
    total, squares = np.zeros(len(ordered)), np.zeros(len(ordered))
    at_once = max(1, AT_ONCE // order.size)
    for first in range(0, resamples, at_once):
        times = np.zeros((min(at_once, resamples - first), blocks + 1), np.int32)
        for row in times:
            chosen = [group[draw.integers(0, len(group), len(group))] for group in groups]
            row[:] = np.bincount(np.concatenate(chosen), minlength=blocks + 1)
        passed = np.cumsum(times[:, order], axis=2, dtype=np.int32)
        counts = passed[:, :, -1]
        low, high, along = _place(counts, QUARTILE)
        a, b = (ordered[slots, np.argmax(passed > at[:, :, None], axis=2)] for at in (low, high))
        for mean in np.where(counts > 0, a + along * (b - a), 0.0):
            total += mean
            squares += mean**2
    variance = squares / resamples - (total / resamples) ** 2
    # The bootstrap variance of n values is (n − 1)/n of the sample's.
    counts = np.maximum(np.sum(~np.isnan(residual), axis=0), 2)
    return np.maximum(variance, 0.0) * counts / (counts - 1)


PRIOR_BLOCKS = 30
"""How many blocks the curve's typical variance counts for beside a slot's own: that of a dozen
values is off by half."""


def _moderated(variance: Floats, counts: Ints) -> Floats:
    """No slot's variance far below the others': that of few blocks is by chance now and then,
    and each such slot would feign a cliff. One that is above them stays."""
    called = counts > 0
    typical = float(np.median((variance * counts)[called])) if called.any() else 0.0
    mixed = (counts * variance + PRIOR_BLOCKS * typical / np.maximum(counts, 1)) / (
        counts + PRIOR_BLOCKS
    )
    return np.maximum(variance, mixed)


PRIOR_DEGREES = 10
"""How many degrees of freedom the pooled variance between processes counts for beside a slot's
own, of which there is one fewer than processes (as in a moderated t; Smyth 2004)."""


def _shares(log_us: Floats, processes: Ints) -> Floats:
    """Each process's share of each slot's calls [processes, slots]. A mean of processes that are
    so unequal is as sure as one of 1 / Σ share² equal ones."""
    held = ~np.isnan(log_us)
    counts = np.array([held[processes == p].sum(axis=0) for p in np.unique(processes)])
    return counts / np.maximum(counts.sum(axis=0), 1)


def _between_processes(residual: Floats, processes: Ints, within: Floats, shares: Floats) -> Floats:
    """The variance of each slot's effect between processes, beyond what its blocks explain.

    Pooled over the slots by the median, since single slots may change their state between
    processes, then mixed with the slot's own where that is larger. Zeros for a single process.
    """
    numbers = np.unique(processes)
    degrees = len(numbers) - 1
    if not degrees:
        return np.zeros(residual.shape[1])
    means = np.array([lower_quartile(residual[processes == p]) for p in numbers])
    with gaps():
        means -= np.nanmedian(means, axis=1)[:, None]
        means -= np.nanmean(means, axis=0)
        explained = within * np.nanmean(1 / np.where(shares > 0, shares, np.nan), axis=0)
    own = np.fmax(np.nansum(means**2, axis=0) / degrees - explained, 0.0)
    chi_square_median = degrees * (1 - 2 / (9 * degrees)) ** 3  # Wilson and Hilferty 1931
    typical = np.nanmedian(np.nansum(means**2, axis=0)) / chi_square_median
    pooled = max(0.0, float(typical - np.nanmedian(explained)))
    mixed = (degrees * own + PRIOR_DEGREES * pooled) / (degrees + PRIOR_DEGREES)
    return np.maximum(mixed, pooled)
