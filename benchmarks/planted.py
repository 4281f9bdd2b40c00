"""False findings and found ones, in recorded noise: the level of the judge, end to end.

    python benchmarks/planted.py

For each state of a machine that ``tests/fixtures/blocks`` has recorded and each number of blocks,
curves of noise: *flat* ones, of which any cliff and any misaligned dim is false; ones with a step
of each size, which is found or not at its place; and ones of which every dim that is no multiple of
8 takes 4 % more, twice the tolerance, of which any such dim that is called safe is false, and any
multiple of 8 that is called misaligned. ``sums`` are the same of the time of two such curves, as a
dim's is that two products take in. ``floor`` is what the map says that noise can cause at a usual
edge (median over the curves).
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from math import log1p
from pathlib import Path

import numpy as np

from gacprof.cliffmap.candidates import OnCurve, Summed, judge_sums
from gacprof.cliffmap.lookup import measured
from gacprof.cliffmap.schema import Curve
from gacprof.cliffmap.source import Side
from gacprof.stats.judge import TOLERANCE

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.recorded_noise import (
    DIMS,
    FIRST,
    FOLDER,
    curve_of_noise,
    judged,
    planted,
    recorded,
)

STEPS = (0.05, 0.1, 0.2, 0.4)
SLOWER = 0.04
MODULUS = 8


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ask.add_argument("--curves", type=int, default=200)
    ask.add_argument("--blocks", default="12,24,48,148")
    given = ask.parse_args()
    draw, another, total = np.random.default_rng(0), np.random.default_rng(1), Counter[str]()
    slow = log1p(SLOWER) * np.array([d % MODULUS != 0 for d in range(FIRST, FIRST + DIMS)])
    for file in sorted(FOLDER.glob("*.parquet")):
        noise = recorded(file.stem)
        for blocks in map(int, given.blocks.split(",")):
            found, floors = Counter[str](), []
            for _ in range(given.curves):
                flat = curve_of_noise(noise, blocks, draw)
                curve = judged(flat)
                floors.append(curve.floor)
                found.update(curves=1, cliffs=bool(curve.cliffs), misaligned=bool(curve.misaligned))
                at = int(draw.integers(DIMS // 4, 3 * DIMS // 4))
                for step in STEPS:
                    stepped = judged(planted(flat, at, step))
                    found[f"{step:.0%}"] += any(c.after == FIRST + at for c in stepped.cliffs)
                found["slow"] += int((slow > 0).sum())
                slowed = judged(flat + slow)
                _count(found, "", slowed.safe, slowed.misaligned)
                second = curve_of_noise(noise, blocks, another)
                together = _summed(curve, judged(second))
                found["sums misaligned"] += "misaligned" in together.judged.verdict
                together = _summed(slowed, judged(second + slow))
                verdicts = list(zip(together.sizes, together.judged.verdict, strict=True))
                safe, worse = (
                    [d for d, verdict in verdicts if verdict == wanted]
                    for wanted in ("safe", "misaligned")
                )
                _count(found, "sums ", safe, worse)
            total += found
            print(_row(f"{file.stem} {blocks}", np.median(floors), found), flush=True)
    print(_row("all", None, total))


def _summed(*curves: Curve) -> Summed:
    """Two products that a dim takes part in, judged together."""
    estimates = {}
    for d in curves[0].points.d:
        first, second = (measured(curve, d) for curve in curves)
        assert first and second
        estimates[d] = first.estimate + second.estimate
    return judge_sums(estimates, [OnCurve(curve, Side(times=1)) for curve in curves], TOLERANCE)


def _count(found: Counter[str], of: str, safe: Sequence[int], misaligned: Sequence[int]) -> None:
    """Where all but the multiples of 8 are slow."""
    found[of + "safe"] += sum(d % MODULUS != 0 for d in safe)
    found[of + "missed"] += sum(d % MODULUS == 0 for d in misaligned)
    found[of + "decided"] += len(safe) + len(misaligned)


def _row(name: str, floor: float | None, found: Counter[str]) -> str:
    n = found["curves"]
    steps = "  ".join(f"{step:.0%}: {found[f'{step:.0%}'] / n:4.0%}" for step in STEPS)
    shown = "" if floor is None else f"{floor:.1%}"
    judged = "; ".join(
        f"{of}flat: misaligned {found[of + 'misaligned'] / n:.2%}, "
        f"slow dims called safe {found[of + 'safe'] / found['slow']:.2%}, "
        f"multiples of {MODULUS} called misaligned {found[of + 'missed']}, "
        f"decided {found[of + 'decided'] / n / DIMS:.0%}"
        for of in ("", "sums ")
    )
    return (
        f"{name:32s} floor {shown:>6s}  flat: cliffs {found['cliffs'] / n:.2%}  "
        f"steps found {steps}  {judged}"
    )


if __name__ == "__main__":
    main()
