"""Curves without a step, or with one planted, in real noise: recorded blocks of six machine states.

``tests/fixtures/blocks`` holds blocks of a 2-core virtual machine (its README tells the states).
What a slot's calls leave beside the two-way fit is noise as it was; dealt out anew among the
slots of each block it belongs to no dim any more, so that a curve made of it has no step, whatever
the machine did. Blocks stay whole: what a neighbour did to one of them is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import log1p
from pathlib import Path

import numpy as np
import pandas as pd

from gacprof.cliffmap.curves import Axis, make_curve, pooled
from gacprof.cliffmap.schema import Curve
from gacprof.stats.fit import fit_blocks, two_way

FOLDER = Path(__file__).parents[1] / "fixtures" / "blocks"
DIMS, FIRST = 40, 1000
AXIS = Axis("linear", "N", {"M": 256, "K": 1024}, "float32", {}, "recorded")


@dataclass(frozen=True)
class Noise:
    """One recorded curve's residuals [blocks, slots] and block effects, in log µs."""

    residual: np.ndarray
    block: np.ndarray


def matrices(state: str) -> Iterator[np.ndarray]:
    """Each recorded curve as log times [blocks, slots]."""
    table = pd.read_parquet(FOLDER / f"{state}.parquet")
    for _, curve in table.groupby("curve"):
        slot = curve.point.astype(str) + "|" + curve.twin.astype(int).astype(str)
        times = curve.assign(slot=slot).pivot_table(
            index="block", columns="slot", values="ns", aggfunc="min"
        )
        yield np.log(times.to_numpy() / 1e3)


def recorded(state: str, least_slots: int = 20) -> list[Noise]:
    found = []
    for log_us in matrices(state):
        if log_us.shape[1] >= least_slots:
            slots, block = two_way(log_us)
            found.append(Noise(log_us - slots - block[:, None], block))
    return found


def curve_of_noise(noise: list[Noise], blocks: int, draw: np.random.Generator) -> np.ndarray:
    """Log times of a curve on which all dims take the same time."""
    chosen = noise[draw.integers(len(noise))]
    rows = []
    for number in draw.integers(len(chosen.residual), size=blocks):
        left = chosen.residual[number]
        left = draw.permutation(left[~np.isnan(left)])
        more = draw.choice(left, max(0, DIMS - len(left)))
        rows.append(np.concatenate([left, more])[:DIMS] + chosen.block[number] + 5.0)
    return np.array(rows)


def planted(log_us: np.ndarray, at: int, step: float) -> np.ndarray:
    """The curve with all dims from the ``at``-th on slower by ``step`` (a fraction)."""
    shifted = log_us.copy()
    shifted[:, at:] += log1p(step)
    return shifted


def judged(log_us: np.ndarray, processes: int = 3) -> Curve:
    """The curve of a map, as from so many processes in turn."""
    process = np.arange(len(log_us)) * processes // len(log_us)
    fit = fit_blocks(log_us, process)
    return make_curve(AXIS, pooled(range(FIRST, FIRST + DIMS), fit))
