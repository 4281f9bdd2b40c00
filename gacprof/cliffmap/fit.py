"""The two-way fit of randomised blocks, and its errors.

The logarithm of a call's time is taken as *size effect + block effect + disturbance*. What slows
the machine for the length of a block goes into the block effect; what disturbs single calls only
adds time. So both effects are lower quartiles of the residuals, found by polishing rows and columns
in turn (Tukey, *Exploratory Data Analysis*, 1977, ch. 11; ``reports/noise.md`` compares others).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import sqrt

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gacprof.cliffmap.cliffmap import MapWarning
from gacprof.cliffmap.judge import significant
from gacprof.core.points import Block

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

QUARTILE = 0.25
POLISHES = 10  # of rows and columns in turn: the steps are below 10⁻³ of the noise by then
FEWEST_CALLS = 4  # below that the error of a size is not known (infinite)
QUARTILE_ERROR = 1.363  # of n normal values' lower quartile, over σ/√n: √(¼·¾) / φ(Φ⁻¹(¼))
NORMAL_BESIDE = 1.028  # Φ⁻¹(0.4) − Φ⁻¹(0.1): the distance of these quantiles, over σ
STEP_ROUNDING = 1 / sqrt(12)  # standard deviation of rounding to a step: of a uniform distribution
NOISIER = 2.0  # a slot keeps its own spread where that exceeds the curve's by this factor
CONTENDED = 0.5  # where more of the sizes are mostly disturbed, all times are the scheduler's
FLOOR_QUANTILE = 0.95  # one pair of replicates in twenty may differ by more
MAX_DRIFT = 0.25  # relative; if levels move by more, the machine changed its state (our choice)
MAX_DISTURBED = 0.1  # share of calls that lost their core or ran throttled in a busy sweep


@dataclass(frozen=True)
class Fit:
    """A fit: the ascending sizes of an axis with their latencies, and what the blocks leave. A slot
    is a size or its A/A replicate; ``slot`` and ``block`` are the effects of each."""

    sizes: tuple[int, ...]
    log_us: Floats  # logarithm of each size's latency in µs at the lower quartile
    error: Floats  # standard error of log_us relative to the other sizes; infinite: unknown
    degrees: float  # of freedom, for Student's t: blocks less one
    slot: Floats
    block: Floats
    residual: Floats  # [blocks, slots]; nan for a call that was not made, or disturbed
    processes: Ints  # of each block
    pairs: tuple[tuple[int, int], ...] = ()  # columns of a size and its replicate
    disturbed: float = 0.0  # share of calls

    @property
    def contended(self) -> bool:
        """Whether most sizes have hardly any undisturbed calls."""
        return bool(np.isinf(self.error).all())


def fit_blocks(blocks: Sequence[Block]) -> Fit:
    """Fit the blocks of one axis, of which there is at least one."""
    numbers = np.repeat(np.arange(len(blocks)), [len(block.order) for block in blocks])
    sizes = chain.from_iterable(block.order for block in blocks)
    times_us = chain.from_iterable(block.times_us for block in blocks)
    calls = pd.DataFrame({"block": numbers, "size": [*sizes], "us": [*times_us]})
    calls["replicate"] = calls.groupby(["block", "size"]).cumcount()
    table = calls.pivot(index="block", columns=["size", "replicate"], values="us")
    table = table.sort_index(axis="columns")
    processes = np.array([block.process for block in blocks])
    columns = table.columns.to_frame(index=False)
    fit = fit_matrix(np.log(table.to_numpy()), columns["size"].tolist(), processes)
    # A size's replicate follows it.
    pairs = [(place - 1, place) for place in np.flatnonzero(columns["replicate"]).tolist()]
    disturbed = float(calls["us"].isna().mean())
    # The clock's step is the smallest between distinct times of a block, from 0 to its first time
    # included: where all times are equal, they are one step.
    steps = np.concatenate([np.diff(np.unique([0.0, *block.times_us])) for block in blocks])
    step_us = np.min(steps[np.isfinite(steps)], initial=np.inf)
    # Tied times do not average out.
    error = np.maximum(fit.error, STEP_ROUNDING * step_us / np.exp(fit.log_us))
    return replace(fit, error=error, pairs=tuple(pairs), disturbed=disturbed)


def fit_matrix(log_times: Floats, slot_sizes: Sequence[int], processes: Ints) -> Fit:
    """Fit log times [blocks, slots] of slots with these sizes; slots of equal size are averaged."""
    slot, block = two_way(log_times)
    level = float(np.quantile(block, QUARTILE))
    residual = log_times - np.add.outer(block, slot)
    error = slot_errors(residual, processes)
    sizes = sorted(set(slot_sizes))
    log_us, size_error = np.zeros(len(sizes)), np.zeros(len(sizes))
    for i, size in enumerate(sizes):
        slots = np.flatnonzero(np.array(slot_sizes) == size)
        has_error = np.isfinite(error[slots])
        slots = slots[has_error | ~has_error.any()]
        log_us[i] = level + slot[slots].mean()
        size_error[i] = sqrt(np.sum(error[slots] ** 2)) / len(slots)
    if np.mean(np.isinf(size_error)) > CONTENDED:
        size_error[:] = np.inf
    degrees = max(1.0, len(log_times) - 1.0)
    return Fit(tuple(sizes), log_us, size_error, degrees, slot, block, residual, processes)


def two_way(log_times: Floats) -> tuple[Floats, Floats]:
    """Return (slot effects, block effects) of log times [blocks, slots] with gaps."""
    # From the medians: polishing has other fixed points, and from zeros it may end in one that
    # takes what slows a quarter of the slots in a third of the blocks for the blocks' own.
    slot, block = quantile_of_columns(log_times, 0.5), np.zeros(len(log_times))
    for _ in range(POLISHES):
        block += quantile_of_columns((log_times - np.add.outer(block, slot)).T, QUARTILE)
        slot += quantile_of_columns(log_times - np.add.outer(block, slot), QUARTILE)
    return slot, block


def slot_errors(residual: Floats, processes: Ints) -> Floats:
    """Return the standard error of each slot's effect, from the residuals [blocks, slots]."""
    counts = np.sum(~np.isnan(residual), axis=0)
    centred = residual - quantile_of_columns(residual, QUARTILE)
    spread = lower_spread(centred.reshape(-1, 1))
    spreads = lower_spread(centred)
    # Slots share the curve's spread, but for noisier ones: few calls may lie close by chance.
    within = np.where(spreads > NOISIER * spread, spreads, spread) / np.sqrt(np.maximum(counts, 1))
    numbers = np.unique(processes)
    apart = np.zeros(len(counts))  # what each effect differs by between processes
    if len(numbers) > 1:
        parts = [residual[processes == number] for number in numbers]
        effects = np.array([quantile_of_columns(part, QUARTILE) for part in parts])
        effects -= np.median(effects, axis=1, keepdims=True)
        apart = np.std(effects, axis=0, ddof=1) / np.sqrt(len(numbers))
    freedom = max(1, len(numbers) - 1)
    usual = np.median(apart) / (1 - 2 / (9 * freedom)) ** 1.5  # the median of χ, Wilson–Hilferty
    between = np.where(apart > NOISIER * usual, apart, usual)
    return np.where(counts >= FEWEST_CALLS, np.maximum(within, between), np.inf)


def lower_spread(values: Floats) -> Floats:
    """Return the standard error of each column's lower quartile, times the root of its values'
    number."""
    # √(¼·¾) over the density there, which the quantiles beside it tell.
    beside = quantile_of_columns(values, 0.4) - quantile_of_columns(values, 0.1)
    return QUARTILE_ERROR / NORMAL_BESIDE * beside


def quantile_of_columns(values: Floats, q: float) -> Floats:
    """Return the quantile of each column, gaps left out; 0 for an empty one."""
    # numpy.nanquantile goes by single columns, in Python.
    ordered = np.sort(values, axis=0)
    counts = np.sum(~np.isnan(ordered), axis=0)
    place = q * np.maximum(counts - 1, 0)
    low = np.floor(place).astype(np.int64)
    high = np.minimum(low + 1, np.maximum(counts - 1, 0))
    column = np.arange(values.shape[1])
    a, b = ordered[low, column], ordered[high, column]
    return np.where(counts > 0, a + (place - low) * (b - a), 0.0)


def noise_floor(fits: Sequence[Fit]) -> float | None:
    """Return the relative difference that a point and its replicate stay within in 19 of 20
    cases."""
    differences = [*chain.from_iterable(map(half_differences, fits))]
    if not differences:
        return None
    return significant(np.expm1(np.quantile(np.abs(differences), FLOOR_QUANTILE)))


def half_differences(fit: Fit) -> list[float]:
    """Return log differences of sizes and their replicates, as two sweeps of this length would
    differ."""
    # A size and its replicate are taken from different halves of the processes (or, of one
    # process, of the blocks).
    groups = fit.processes
    if len(np.unique(groups)) < 2:
        groups = np.arange(len(groups)) % 2
    numbers = np.unique(groups)
    first = np.isin(groups, numbers[::2])
    if first.all() or fit.contended:
        return []
    # Halves have fewer processes than the sweep, so that effects spread more, by this factor.
    scale = np.sqrt(2 / len(numbers) / (1 / len(numbers[::2]) + 1 / len(numbers[1::2])))
    halves = []
    for half in (fit.residual[first], fit.residual[~first]):
        counts = np.sum(~np.isnan(half), axis=0)
        quartiles = quantile_of_columns(half, QUARTILE)
        halves.append(fit.slot + np.where(counts >= FEWEST_CALLS, quartiles, np.nan))
    a, b = halves
    measured = np.isfinite(a - b)
    if not measured.any():
        return []
    a -= np.median((a - b)[measured])  # a common level between halves is no noise of sizes
    sizes, replicates = np.array(fit.pairs, dtype=np.int64).reshape(-1, 2).T
    differences = np.concatenate([a[sizes] - b[replicates], b[sizes] - a[replicates]])
    return list(scale * differences[np.isfinite(differences)])


def machine_warnings(fits: Sequence[Fit]) -> list[MapWarning]:
    """Warn of drift and contention of the machine beyond what block effects absorb."""
    if not fits:  # of a virtual GPU
        return []
    warnings = []
    thirds = [(fit.block, len(fit.block) // 3) for fit in fits]
    moves = [np.median(b[-n:]) - np.median(b[:n]) if n else 0.0 for b, n in thirds]
    drift = float(np.expm1(np.median(moves)))
    if abs(drift) > MAX_DRIFT:
        message = f"the last third of the sweep ran {drift:+.0%} against the first"
        warnings.append(MapWarning("drift", message))
    disturbed = float(np.mean([fit.disturbed for fit in fits]))
    contended = sum(fit.contended for fit in fits)
    if contended or disturbed > MAX_DISTURBED:
        message = (
            f"{disturbed:.0%} of the calls lost their core or ran throttled and were left out; "
            f"{contended} curves are undecided for it: stop other programs, then --resume"
        )
        warnings.append(MapWarning("contention", message))
    return warnings
