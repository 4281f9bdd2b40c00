"""Blocks to cliff map: fit each axis, judge its sizes, find its multiple and its cliffs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, compress, pairwise
from math import expm1, hypot, log, log1p
from pathlib import Path

import numpy as np

from gacprof.cliffmap.cliffmap import MAP_FILE, Cliff, CliffMap, Curve, MapWarning
from gacprof.cliffmap.fit import Fit, fit_blocks, machine_warnings, noise_floor
from gacprof.cliffmap.judge import INTERVAL_LEVEL, judge_sizes, quantile, significant
from gacprof.cliffmap.run_folder import RunFolder
from gacprof.core.errors import MapError
from gacprof.core.files import read_json
from gacprof.core.formatting import counted
from gacprof.core.points import Axis
from gacprof.core.sizes import TOLERANCE, Interval, SizeVerdict
from gacprof.kernels.names import attach

MIN_PROCESSES = 2  # places in memory move single sizes by some per cent from one to the next
MULTIPLES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
FEWEST_MULTIPLES = 3  # sizes measured, for a multiple to be judged
MIN_SAVING = 0.05  # share of time that makes a larger multiple worth its fewer sizes (our choice)
FAMILY_LEVEL = 0.003  # chance that noise makes any cliff of a curve, all its edges together
# A jump that is no cliff where errors are not known, as of published data: twice the largest wobble
# of the published A100 GEMM plateaus (2.2 %), a sixth of their smallest cliff.
ASSUMED_FLOOR = 0.05


def build_map(
    run: RunFolder | str | Path,
    *,
    tolerance: float = TOLERANCE,
    name: str | None = None,
    out: str | Path | None = None,
) -> CliffMap:
    """Build a cliff map from a sweep: the sizes that are safe, those that are slow, the cliffs.

    Parameters
    ----------
    run
        The folder that a sweep wrote.
    tolerance
        The share of time that a size may waste and still be safe: 0.02 is 2 %.
    name
        The map's name. By default the run folder's.
    out
        The map's file. By default cliffmap.json in the run folder.

    Raises
    ------
    MeasurementError
        Where there is no such run.
    MapError
        Where nothing was measured in it, or the file holds a map of another tolerance.

    Examples
    --------
    >>> cliff_map = gacprof.build_map("tests/fixtures/h200/quick", out="quick.json")
    >>> curve = cliff_map.curves[1]
    >>> curve.axis.dim, curve.axis.fixed, curve.multiple
    ('N', {'M': 512, 'K': 1024}, 8)
    """
    if isinstance(run, str | Path):
        out = out or Path(run) / MAP_FILE
        name = name or Path(run).resolve().name
        run = RunFolder(run)
    fits = {axis: fit_blocks(run.blocks(axis)) for axis in run.axes if run.blocks(axis)}
    virtual = run.environment.kind == "virtual"
    if not fits and not virtual:
        raise MapError(f"nothing was measured in the run '{run.name}': sweep it again")
    curves = []
    for axis in run.axes:
        kernels = {size: kernel_summary(names) for size, names in run.kernels(axis).items()}
        if virtual:
            untimed = [SizeVerdict(size, "unknown", cause="not_measured") for size in axis.sizes]
            curves.append(Curve(axis, completed(untimed, kernels, run.failures(axis))))
        elif axis in fits:
            fit = fits[axis]
            if not shows_spread(run, fit):
                fit = replace(fit, error=np.full(len(fit.sizes), np.inf))
            curves.append(judged_axis(axis, fit, tolerance, kernels, run.failures(axis)))
    all_fits = list(fits.values())
    verb = "kernels dispatched on a virtual" if virtual else "measured on"
    stack = " ".join(f"{name} {version}" for name, version in run.environment.stack.items())
    cliff_map = CliffMap(
        name or run.name,
        f"{verb} {run.environment.name} ({stack})",
        run.environment,
        tuple(curves),
        tolerance,
        noise_floor(all_fits),
        (*machine_warnings(all_fits), *run_warnings(run, all_fits)),
    )
    cliff_map.check(run.name)
    if out is not None:
        stored = tolerance
        with suppress(OSError, ValueError, LookupError, TypeError):  # there is no map
            stored = read_json(Path(out))["tolerance"]
        if stored != tolerance:
            raise MapError(
                f"{out} is a map of tolerance {stored}: name this, or another file by --out"
            )
        cliff_map.save(out)
    return cliff_map


def shows_spread(run: RunFolder, fit: Fit) -> bool:
    """Return whether a curve's errors are known: the sweep ended, and several processes took
    part."""
    # With planted differences between processes, one alone called a quarter of slow sizes safe.
    return run.ended and len(np.unique(fit.processes)) >= MIN_PROCESSES


def judged_axis(
    axis: Axis, fit: Fit, tolerance: float, kernels: Mapping[int, str], failures: Mapping[int, str]
) -> Curve:
    """Judge the sizes of a fitted axis, and find its multiple and its cliffs."""
    timed = judge_sizes(fit.sizes, fit.log_us.tolist(), fit.error.tolist(), tolerance, fit.degrees)
    verdicts = completed(timed, kernels, failures)
    multiple = best_multiple(verdicts)
    cliffs = find_cliffs(fit, multiple, kernels)
    return Curve(axis, verdicts, tuple(cliffs), multiple)


def completed(
    verdicts: Sequence[SizeVerdict], kernels: Mapping[int, str], failures: Mapping[int, str]
) -> tuple[SizeVerdict, ...]:
    """Add to verdicts the kernel that serves each size, and a verdict on each size that failed."""
    whole = {}
    for size, why in failures.items():
        whole[size] = SizeVerdict(size, "unknown", reason=why, cause="failed")
    for verdict in verdicts:
        kernel = kernels.get(verdict.size, "")
        reason = "; ".join(filter(None, [kernel, verdict.reason]))
        whole.setdefault(verdict.size, replace(verdict, kernel=kernel, reason=reason))
    return tuple(whole[size] for size in sorted(whole))


def run_warnings(run: RunFolder, fits: Sequence[Fit]) -> list[MapWarning]:
    """Warn of points that failed, and of curves undecided for want of an end or a process."""
    warnings = []
    failures = [*chain.from_iterable(run.failures(axis).values() for axis in run.axes)]
    if failures:
        often = max(failures, key=failures.count)
        message = f"{counted(len(failures), 'point')} failed, most often: {often}"
        warnings.append(MapWarning("failed", message))
    unfinished = sum(not shows_spread(run, fit) for fit in fits)
    if unfinished:
        message = (
            f"{unfinished} of {counted(len(run.axes), 'curve')} are undecided: the sweep was "
            f"stopped before its end, or its budget was too short for {MIN_PROCESSES} processes: "
            "go on by 'gacprof sweep … --resume'"
        )
        warnings.append(MapWarning("unfinished", message))
    return warnings


def kernel_summary(names: Sequence[str]) -> str:
    """Return the kernels of one call as a map names them, without tile and schedule."""
    parts = []
    for kernel in attach(names):
        words = {"padded": kernel.padded, kernel.mechanism: True, "split-k": kernel.split_k}
        parts.append(" ".join(compress(words, words.values())))
    return " + ".join(dict.fromkeys(parts))


def best_multiple(verdicts: Sequence[SizeVerdict]) -> int | None:
    """Return the multiple to round up to: the smallest one than which no larger one saves over
    :data:`MIN_SAVING`, by the mean of the lower ends of its sizes' penalties. None where too few
    sizes are decided."""
    lows = {v.size: v.penalty.low for v in verdicts if v.penalty is not None}
    left: dict[int, float] = {}
    for multiple in MULTIPLES:
        penalties = [low for size, low in lows.items() if size % multiple == 0]
        if len(penalties) >= FEWEST_MULTIPLES:
            left[multiple] = sum(penalties) / len(penalties)
    decided = sum(v.verdict in ("safe", "misaligned") for v in verdicts)
    if decided < FEWEST_MULTIPLES:
        return None
    enough = min(left.values()) + MIN_SAVING
    return min(multiple for multiple, penalty in left.items() if penalty <= enough)


def find_cliffs(fit: Fit, multiple: int | None, kernels: Mapping[int, str]) -> list[Cliff]:
    """Find the jumps between neighbouring multiples of ``multiple``: what lies between is worse."""
    sizes, log_us, error = fit.sizes, fit.log_us.tolist(), fit.error.tolist()
    is_multiple = np.array(sizes) % (multiple or 1) == 0
    places = np.flatnonzero(is_multiple & np.isfinite(error)).tolist()
    # Bonferroni: the chance of a false cliff is shared by the edges of the curve.
    edge = quantile(FAMILY_LEVEL / 2 / max(1, len(places) - 1), fit.degrees)
    half_width = quantile(INTERVAL_LEVEL, fit.degrees)
    cliffs = []
    for i, j in pairwise(places):
        jump, spread = log_us[j] - log_us[i], hypot(error[i], error[j])
        noise = edge * spread if spread else log1p(ASSUMED_FLOOR)
        # The work grows from i to j by their ratio at most: a cliff is what exceeds that growth.
        if -noise <= jump <= log(sizes[j] / sizes[i]) + noise:
            continue
        bounds = [jump - half_width * spread, jump, jump + half_width * spread]
        interval = Interval(*(significant(expm1(bound)) for bound in bounds))
        first, second = kernels.get(sizes[i], ""), kernels.get(sizes[j], "")
        cause = ""
        if first and second:
            cause = "the same kernel" if first == second else f"{first} → {second}"
        cliffs.append(Cliff(sizes[i], sizes[j], interval, cause))
    return cliffs
