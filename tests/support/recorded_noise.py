"""Curves without a step, or with a planted one, in real noise: recorded blocks of six states.

``tests/fixtures/blocks`` holds blocks of a 2-core virtual machine (its README tells the states).
What a slot's calls leave beside the two-way fit is noise as it was; dealt out anew among the slots
of each block it belongs to no size any more, so that a curve of it has no step, whatever the
machine did. Blocks stay whole: what a neighbour did to one of them is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import log1p
from pathlib import Path

import numpy as np
import pandas as pd

from gacprof.cliffmap.build import judged_axis
from gacprof.cliffmap.cliffmap import Curve
from gacprof.cliffmap.fit import Floats, fit_matrix, two_way
from gacprof.core.points import Axis
from gacprof.core.sizes import TOLERANCE

FOLDER = Path(__file__).parents[1] / "fixtures" / "blocks"
STATES = sorted(path.stem for path in FOLDER.glob("*.parquet"))
FIRST, COUNT = 1000, 40
SIZES = tuple(range(FIRST, FIRST + COUNT))
AXIS = Axis("linear", "N", SIZES, {"M": 256, "K": 1024}, "float32", {})


@dataclass(frozen=True)
class Noise:
    """One recorded curve's residuals [blocks, slots] and block effects, in log µs."""

    residual: Floats
    block: Floats


def matrices(state: str) -> Iterator[Floats]:
    """Each recorded curve as log times [blocks, slots]."""
    table = pd.read_parquet(FOLDER / f"{state}.parquet")
    for _, curve in table.groupby("curve"):
        slot = curve.point.astype(str) + "|" + curve.twin.astype(int).astype(str)
        times = curve.assign(slot=slot).pivot_table(
            index="block", columns="slot", values="ns", aggfunc="min"
        )
        yield np.log(times.to_numpy() / 1e3)


def recorded(state: str, min_slots: int = 20) -> list[Noise]:
    """The noise of a state's longer curves."""
    noise = []
    for log_us in matrices(state):
        if log_us.shape[1] >= min_slots:
            slot, block = two_way(log_us)
            noise.append(Noise(log_us - np.add.outer(block, slot), block))
    return noise


def curve_of_noise(noise: list[Noise], blocks: int, draw: np.random.Generator) -> Floats:
    """Log times of a curve on which all sizes take the same time."""
    curve = noise[draw.integers(len(noise))]
    rows = []
    for number in draw.integers(len(curve.residual), size=blocks):
        rest = curve.residual[number]
        rest = draw.permutation(rest[~np.isnan(rest)])
        more = draw.choice(rest, max(0, COUNT - len(rest)))
        rows.append(np.concatenate([rest, more])[:COUNT] + curve.block[number] + 5.0)
    return np.array(rows)


def stepped(log_us: Floats, at: int, step: float) -> Floats:
    """The curve with all sizes from the ``at``-th on slower by ``step`` (a fraction)."""
    shifted = log_us.copy()
    shifted[:, at:] += log1p(step)
    return shifted


def judged_curve(log_us: Floats, processes: int = 3) -> Curve:
    """The curve of a map, as from so many processes in turn."""
    process = np.arange(len(log_us)) * processes // len(log_us)
    return judged_axis(AXIS, fit_matrix(log_us, SIZES, process), TOLERANCE, {}, {})
