"""The noise of a sweep, from its hidden A/A replicates; and what its design assumes, tested."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gacprof.cliffmap.schema import Check, Noise
from gacprof.core.fit import FLOOR_QUANTILE, Fit, aa_floor, half_sample_differences
from gacprof.core.points import Block, Point

Floats = NDArray[np.float64]
LEAST_PAIRS = 12
"""Fewer A/A pairs do not show how far errors are off: their 95 % quantile is the largest."""
DRIFT_BOUND = 0.25
"""A level that moves by more within a sweep was not one machine state."""
CARRY_OVER_BOUND = 0.01
CONTENDED = 0.5
"""The share of calls that lost a core although they were made several times over, from which a
curve's times are those of the scheduler: all dims then look alike, and nothing looks noisy."""

Column = tuple[Point, bool]
"""What a column of the blocks' table holds: a point, and whether it is the A/A replicate."""


@dataclass(frozen=True)
class CurveBlocks:
    """The blocks of one curve as a matrix of log times [blocks, slots], and their fit."""

    blocks: Sequence[Block]
    slots: list[Column]
    log_us: Floats
    disturbed: float
    fit: Fit

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """(slot, its replicate) by their columns."""
        place = {slot: i for i, slot in enumerate(self.slots)}
        found = ((i, place.get((p, True))) for (p, doubled), i in place.items() if not doubled)
        return [(i, j) for i, j in found if j is not None]

    @property
    def contended(self) -> bool:
        return self.disturbed > CONTENDED

    @property
    def process(self) -> list[int]:
        return [block.process for block in self.blocks]


def noise_of(curves: Sequence[CurveBlocks]) -> Noise:
    """The A/A floor over all pairs of these curves; null with the reason where there is none."""
    differences: list[float] = []
    standard: list[float] = []
    for curve in curves:
        pairs = curve.pairs
        if not pairs:
            continue
        differences += half_sample_differences(curve.log_us, curve.process, pairs).tolist()
        for i, j in pairs:
            spread = float(np.hypot(curve.fit.error[i], curve.fit.error[j]))
            if 0 < spread < np.inf:
                standard.append(abs(curve.fit.effect[i] - curve.fit.effect[j]) / spread)
    number = sum(len(curve.pairs) for curve in curves)
    if not differences:
        return Noise(floor=None, reason="no hidden A/A replicate was measured often enough")
    off = aa_floor(standard) / 1.96 if len(standard) >= LEAST_PAIRS else 1.0
    return Noise(
        floor=float(f"{np.expm1(aa_floor(differences)):.4g}"),
        quantile=FLOOR_QUANTILE,
        pairs=number,
        processes=len({p for curve in curves for p in curve.process}),
        inflation=round(max(1.0, off), 3),
    )


def checks(curves: Sequence[CurveBlocks]) -> list[Check]:
    """Carry-over from the predecessor, drift of the level, and contention, each tested."""
    found = [_carry_over(curves), _drift(curves), _contention(curves)]
    return [check for check in found if check is not None]


def _carry_over(curves: Sequence[CurveBlocks]) -> Check | None:
    """How much longer a call takes after a slow dim of its curve than after a fast one."""
    before, rest = [], []
    for curve in curves:
        place = {slot: i for i, slot in enumerate(curve.slots)}
        effect = curve.fit.effect - np.nanmedian(curve.fit.effect)
        for row, block in enumerate(curve.blocks):
            columns = [place[call.point, call.replicate] for call in block.calls]
            before += effect[columns[:-1]].tolist()
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
    effect_size, bound = slope * (slow - fast), 3 * error * (slow - fast)
    return Check(
        name="carry-over",
        effect=round(effect_size, 5),
        bound=round(max(bound, CARRY_OVER_BOUND), 5),
        passed=abs(effect_size) <= max(bound, CARRY_OVER_BOUND),
        told=f"after one of the slowest tenth a call takes {effect_size:+.2%} against one after "
        f"the fastest tenth (chance: {bound:.2%}); orders are random, so no dim gains by it",
    )


def _drift(curves: Sequence[CurveBlocks]) -> Check | None:
    """How much the level of the curves moved from the sweep's first third to its last."""
    moves = []
    for curve in curves:
        level = np.nanmedian(curve.log_us - curve.fit.effect, axis=1)
        third = len(level) // 3
        if third:
            moves.append(float(np.median(level[-third:]) - np.median(level[:third])))
    if not moves:
        return None
    moved = float(np.expm1(np.median(moves)))
    return Check(
        name="drift",
        effect=round(moved, 5),
        bound=DRIFT_BOUND,
        passed=abs(moved) <= DRIFT_BOUND,
        told=f"the last third of the sweep ran {moved:+.1%} against the first; blocks take that up",
    )


def _contention(curves: Sequence[CurveBlocks]) -> Check:
    share = float(np.mean([curve.disturbed for curve in curves])) if curves else 0.0
    contended = sum(curve.contended for curve in curves)
    return Check(
        name="contention",
        effect=round(share, 5),
        bound=CONTENDED,
        passed=not contended,
        told=f"{share:.1%} of the calls lost a core to other work, however often they were made; "
        + (f"{contended} curves are undecided for it" if contended else "the others count"),
    )
