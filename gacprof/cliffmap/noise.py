"""The noise of a sweep: the A/A floor of hidden replicates, drift, and contention."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gacprof.cliffmap.cliffmap import MapWarning
from gacprof.cliffmap.fit import FEWEST_CALLS, QUARTILE, Fit, Floats, quantile_of_columns

FLOOR_QUANTILE = 0.95
"""One pair in twenty of the same thing twice may differ by more than the floor."""
MAX_DRIFT = 0.25
"""A level that moves by more within a sweep was not one state of the machine (our choice)."""
MAX_DISTURBED = 0.1
"""The share of calls that lost their core or ran throttled, from which a sweep is called busy."""


def noise_floor(fits: Sequence[Fit]) -> float | None:
    """The relative difference that a point and its replicate stay within in 19 of 20 cases; None
    without replicates that were called often enough."""
    differences = [d for fit in fits for d in half_differences(fit)]
    if not differences:
        return None
    return float(np.expm1(np.quantile(np.abs(differences), FLOOR_QUANTILE)))


def half_differences(fit: Fit) -> list[float]:
    """Log differences of sizes and their replicates, each side from the other half of the
    processes (of the blocks, where there is one process), as two sweeps of this length would
    differ: a variance falls with the number of processes."""
    groups = fit.processes
    if len(np.unique(groups)) < 2:
        groups = np.arange(len(groups)) % 2
    numbers = np.unique(groups)
    first = np.isin(groups, numbers[::2])
    if first.all() or fit.contended:
        return []
    scale = np.sqrt(2 / len(numbers) / (1 / len(numbers[::2]) + 1 / len(numbers[1::2])))
    a, b = (fit.slot + half_quartiles(fit.residual[half]) for half in (first, ~first))
    measured = np.isfinite(a - b)
    if not measured.any():
        return []
    a -= np.median((a - b)[measured])  # halves may differ by a level that the whole does not have
    pairs = [d for i, j in fit.pairs for d in (a[i] - b[j], b[i] - a[j])]
    return [float(scale * d) for d in pairs if np.isfinite(d)]


def half_quartiles(residual: Floats) -> Floats:
    """The lower quartile of each slot's residuals; nan for a slot of too few calls."""
    counts = np.sum(~np.isnan(residual), axis=0)
    return np.where(counts >= FEWEST_CALLS, quantile_of_columns(residual, QUARTILE), np.nan)


def machine_warnings(fits: Sequence[Fit]) -> list[MapWarning]:
    """Drift and contention of the machine, as far as they exceed what blocks take up."""
    warnings = []
    drift = float(np.expm1(np.median([level_drift(fit) for fit in fits] or [0.0])))
    if abs(drift) > MAX_DRIFT:
        message = f"the last third of the sweep ran {drift:+.0%} against the first"
        warnings.append(MapWarning("drift", message))
    disturbed = float(np.mean([fit.disturbed for fit in fits] or [0.0]))
    contended = sum(fit.contended for fit in fits)
    if contended or disturbed > MAX_DISTURBED:
        message = (
            f"{disturbed:.0%} of the calls lost their core or ran throttled; "
            f"{contended} curves are undecided for it: stop other programs and sweep again"
        )
        warnings.append(MapWarning("contention", message))
    return warnings


def level_drift(fit: Fit) -> float:
    """The move (log) of a curve's level from its first third of blocks to its last."""
    third = len(fit.block) // 3
    if third == 0:
        return 0.0
    return float(np.median(fit.block[-third:]) - np.median(fit.block[:third]))
