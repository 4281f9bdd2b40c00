"""The noise of a sweep, from its hidden A/A replicates; and what its design assumes, tested."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from gacprof.core.points import Block, Point
from gacprof.stats.blocks import CONTENDED, CurveBlocks, block_row, log_matrix, units_of
from gacprof.stats.findings import Check, CheckName, Noise
from gacprof.stats.fit import Floats, Ints, fit_blocks, gaps, lower_quartile, two_way
from gacprof.stats.judge import quantiles

FLOOR_QUANTILE = 0.95
"""One pair in twenty of the same thing twice may differ by more than the floor (our choice)."""
LEAST_CALLS = 4
"""In level blocks, for a curve's level to be known."""
LEAST_PAIRS = 12
"""Fewer A/A pairs do not show how far errors are off: their 95 % quantile is the largest."""
DRIFT_BOUND = 0.25
"""A level that moves by more within a sweep was not one machine state. Our choice: blocks take up
what is less."""
CARRY_OVER_BOUND = 0.01
"""Half of the tolerance: orders are random, so a carry-over of less turns no verdict."""
DEVICES_BOUND = 0.01
"""Equal devices whose levels differ by less pass for equally fast."""
LEVELS_BOUND = 0.5
"""How far curves' levels may move by being called in turn: caches explain a third."""


def noise_of(curves: Sequence[CurveBlocks]) -> Noise:
    """The A/A floor over all pairs of these curves; null with the reason where there is none.

    Of several devices, what another one of them would differ by is in it, from the curves that
    more than one has measured.
    """
    differences: list[float] = []
    between_devices: list[float] = []
    for curve in curves:
        several = len(curve.devices) > 1
        found = half_sample_differences(
            curve.log_us, units_of(curve.blocks), curve.pairs, 1 if several else None
        ).tolist()
        differences += found
        between_devices += found if several else []
    if not differences:
        return Noise(floor=None, reason="no hidden A/A replicate was measured often enough")
    floor = max(
        aa_floor(differences),
        aa_floor(between_devices) if len(between_devices) >= LEAST_PAIRS else 0.0,
    )
    beyond = list(chain.from_iterable(map(_beyond_errors, curves)))
    off = aa_floor(beyond) if len(beyond) >= LEAST_PAIRS else 1.0
    return Noise(
        floor=float(f"{np.expm1(floor):.4g}"),
        quantile=FLOOR_QUANTILE,
        pairs=sum(len(curve.pairs) for curve in curves),
        processes=len({block.process for curve in curves for block in curve.blocks}),
        inflation=round(max(1.0, off), 3),
    )


def _beyond_errors(curve: CurveBlocks) -> list[float]:
    """What each point and its replicate differ by, over what 95 % of differences stay within by
    their errors (Student's t)."""
    effect, error = curve.fit.effect, curve.fit.error
    quantile = quantiles(0.025, curve.fit.degrees, len(error))
    found = []
    for i, j in curve.pairs:
        spread = float(np.hypot(error[i], error[j]))
        if 0 < spread < np.inf:
            found.append(abs(effect[i] - effect[j]) / spread / max(quantile[i], quantile[j]))
    return found


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


def levels_of(blocks: Sequence[Block], curves: Sequence[CurveBlocks]) -> list[Floats]:
    """By curve and slot: how much the log latency moves where calls of all curves take turns, by
    the level blocks.

    A curve's own blocks tell how its dims compare, and find the caches as equal products leave
    them. A model's products take turns as level blocks do. Each call there counts beside what
    its curve's fit says of its dim, so that a level block is one of curves (at one number of
    tokens): the same two-way fit. A curve that they hardly hold moves as the others do.
    """
    column: dict[tuple[int, int], int] = {}
    usual: dict[Point, list[tuple[int, float]]] = {}
    for number, curve in enumerate(curves):
        for (point, doubled), effect in zip(curve.slots, curve.fit.effect, strict=True):
            place = column.setdefault((number, point.tokens), len(column))
            if not doubled and np.isfinite(effect):
                usual.setdefault(point, []).append((place, float(np.exp(effect))))
    rows = [
        block_row(
            (place, call.us / usual_us, call.disturbed)
            for call in block.calls
            for place, usual_us in usual.get(call.point, ())
        )
        for block in blocks
    ]
    moved = np.zeros(len(column))
    if any(rows):
        fit = fit_blocks(log_matrix(rows, len(column))[0], units_of(blocks))
        known = fit.counts >= LEAST_CALLS
        if known.any():
            moved = np.where(known, fit.effect, np.median(fit.effect[known]))
    return [
        np.array([moved[column[number, point.tokens]] for point, _ in curve.slots])
        for number, curve in enumerate(curves)
    ]


def checks(curves: Sequence[CurveBlocks], levels: Sequence[Floats] = ()) -> list[Check]:
    """What the design assumes, each property tested; ``levels`` are the moves of
    the curves' levels (log)."""
    tests: list[tuple[CheckName, Result | None]] = [
        ("carry-over", _carry_over(curves)),
        ("drift", _drift(curves)),
        ("contention", _contention(curves)),
        ("levels", _moved(levels)),
        ("devices", _devices(curves)),
    ]
    return [
        Check(
            name=name, effect=round(found.effect, 5), bound=round(found.bound, 5),
            passed=abs(found.effect) <= found.bound and not found.failed, message=found.message,
        )
        for name, found in tests
        if found is not None
    ]  # fmt: skip


class Result(NamedTuple):
    """The effect found, how large it may be, and what that means. ``failed`` for another reason."""

    effect: float
    bound: float
    message: str
    failed: bool = False


def _carry_over(curves: Sequence[CurveBlocks]) -> Result | None:
    """How much longer a call takes after a slow dim of its curve than after a fast one."""
    before, rest = [], []
    for curve in curves:
        relative = curve.fit.effect - np.nanmedian(curve.fit.effect)
        for row, block in enumerate(curve.blocks):
            columns = [curve.column(call.slot) for call in block.calls]
            before += relative[columns[:-1]].tolist()
            rest += curve.fit.residual[row, columns[1:]].tolist()
    x, y = np.array(before), np.array(rest)
    known = ~(np.isnan(x) | np.isnan(y))
    x, y = x[known], y[known]
    if len(x) < 100:
        return None
    middle = np.median(y)
    wide = 3 * 1.4826 * np.median(np.abs(y - middle))
    y = np.clip(y - middle, -wide, wide)  # disturbances do not depend on the predecessor
    fast, slow = np.quantile(x, (0.1, 0.9))
    if slow - fast < 1e-6:
        return None
    slope = float(np.cov(x, y)[0, 1] / np.var(x))
    error = float(np.std(y - slope * x) / np.sqrt(len(x) * np.var(x)))
    effect, chance = slope * float(slow - fast), 3 * error * float(slow - fast)
    return Result(
        effect,
        max(chance, CARRY_OVER_BOUND),
        f"after one of the slowest tenth a call takes {effect:+.2%} against one after "
        f"the fastest tenth (chance: {chance:.2%}); orders are random, so no dim gains by it",
    )


def _drift(curves: Sequence[CurveBlocks]) -> Result | None:
    """How much the level of the curves moved from the sweep's first third to its last."""
    levels = [level[~np.isnan(level)] for level in map(_level_by_block, curves)]
    thirds = [(level, len(level) // 3) for level in levels if len(level) >= 3]
    if not thirds:
        return None
    moved = np.median([np.median(level[-n:]) - np.median(level[:n]) for level, n in thirds])
    drift = float(np.expm1(moved))
    message = f"the last third of the sweep ran {drift:+.1%} against the first; blocks take that up"
    return Result(drift, DRIFT_BOUND, message)


def _level_by_block(curve: CurveBlocks) -> Floats:
    """NaN for a block of which every call was disturbed."""
    with gaps():
        return np.asarray(np.nanmedian(curve.log_us - curve.fit.effect, axis=1))


SLOW, MANY_SLOW = 3.0, 0.1
"""Calls of so many times their usual length are counted; above that share the machine was busy."""


def _contention(curves: Sequence[CurveBlocks]) -> Result:
    """Waits for a core are counted by the system; what neighbours of a virtual machine take is not,
    and shows in calls that take several times as long as usual."""
    residual = np.concatenate([np.zeros(0), *(c.fit.residual.ravel() for c in curves)])
    residual = residual[~np.isnan(residual)]
    slow = float(np.mean(residual > np.log(SLOW))) if len(residual) else 0.0
    share = float(np.mean([curve.disturbed for curve in curves])) if curves else 0.0
    contended = sum(curve.contended for curve in curves)
    message = (
        f"{share:.1%} of the calls waited for a core that other work had, "
        f"{slow:.1%} took over {SLOW:g} times as long as usual; "
        + (f"{contended} curves are undecided for it" if contended else "the others count")
    )
    return Result(share, CONTENDED, message, failed=bool(contended) or slow > MANY_SLOW)


def _moved(levels: Sequence[Floats]) -> Result | None:
    moved = [float(np.median(level)) for level in levels]
    if not any(moved):
        return None
    low, middle, high = np.expm1(np.quantile(moved, (0.1, 0.5, 0.9))).tolist()
    message = (
        f"in turn with those of other curves, calls take {middle:+.1%} ({low:+.1%} to "
        f"{high:+.1%}) against their own curves' blocks; latencies are of the former"
    )
    return Result(middle, LEVELS_BOUND, message, failed=max(abs(low), abs(high)) > LEVELS_BOUND)


def device_variance(curves: Sequence[CurveBlocks]) -> float:
    """The variance of a dim's log latency between equal devices, from the curves that several of
    them measured; 0 where none did."""
    found = [curve.fit.between for curve in curves if len(curve.devices) > 1]
    return float(np.median(found)) if found else 0.0


def _devices(curves: Sequence[CurveBlocks]) -> Result | None:
    """Which of several equal devices is slower or faster than the others, by link curves."""
    levels: dict[str, list[float]] = {}
    spreads: list[float] = []
    for curve in (curve for curve in curves if len(curve.devices) > 1):
        by_row = _level_by_block(curve)
        own = {name: _levels(curve, by_row, name) for name in curve.devices}
        middle = float(np.median([np.mean(each) for each in own.values()]))
        for name, each in own.items():
            levels.setdefault(name, []).append(float(np.mean(each)) - middle)
            spreads += [float(np.var(each, ddof=1) / len(each))] if len(each) > 1 else []
    if not levels:
        return None
    off = {name: float(np.expm1(np.mean(each))) for name, each in levels.items()}
    worst, *others = sorted(off, key=lambda name: -abs(off[name]))
    chance = 4 * float(np.sqrt(np.mean(spreads))) if spreads else 0.0
    bound = max(chance, DEVICES_BOUND)
    odd = [name for name in (worst, *others) if abs(off[name]) > bound]
    named = ", ".join(f"{name} takes {off[name]:+.1%}" for name in (odd or [worst])[:3])
    more = f" and {len(odd) - 3} more differ" if len(odd) > 3 else ""
    message = f"of {len(off)} equal devices {named}{more} against the median (chance: {chance:.1%})"
    return Result(off[worst], bound, message)


def _levels(curve: CurveBlocks, by_row: Floats, device: str) -> list[float]:
    """The level of a curve on a device, by process."""
    rows: dict[int, list[float]] = {}
    for block, level in zip(curve.blocks, by_row, strict=True):
        if block.device == device and not np.isnan(level):
            rows.setdefault(block.process, []).append(float(level))
    return [float(np.median(each)) for each in rows.values()]
