"""False findings and found ones, in recorded noise: the level of the judge, end to end.

    python benchmarks/planted.py

For each state of a machine that ``tests/fixtures/blocks`` has recorded and each number of blocks,
curves of noise: *flat* ones, of which any cliff and any misaligned dim is false; ones with a step
of each size, which is found or not at its place; and ones of which every dim that is no multiple of
8 takes 4 % more, twice the tolerance, of which any such dim that is called safe is false, and any
multiple of 8 that is called misaligned. ``floor`` is what the map says that noise can cause at a
usual edge (median over the curves).
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from math import log1p
from pathlib import Path

import numpy as np

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
    draw, total = np.random.default_rng(0), Counter[str]()
    aligned = np.array([d % MODULUS == 0 for d in range(FIRST, FIRST + DIMS)])
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
                slow = judged(flat + log1p(SLOWER) * ~aligned)
                found["safe"] += sum(d % MODULUS != 0 for d in slow.safe)
                found["slow"] += int((~aligned).sum())
                found["missed"] += sum(d % MODULUS == 0 for d in slow.misaligned)
                found["decided"] += len(slow.safe) + len(slow.misaligned)
            total += found
            print(_row(f"{file.stem} {blocks}", np.median(floors), found), flush=True)
    print(_row("all", None, total))


def _row(name: str, floor: float | None, found: Counter[str]) -> str:
    n = found["curves"]
    steps = "  ".join(f"{step:.0%}: {found[f'{step:.0%}'] / n:4.0%}" for step in STEPS)
    shown = "" if floor is None else f"{floor:.1%}"
    return (
        f"{name:32s} floor {shown:>6s}  flat: cliffs {found['cliffs'] / n:.2%} "
        f"misaligned {found['misaligned'] / n:.2%}  steps found {steps}  "
        f"slow dims called safe {found['safe'] / found['slow']:.2%}, "
        f"multiples of {MODULUS} called misaligned {found['missed']}, "
        f"decided {found['decided'] / n / DIMS:.0%}"
    )


if __name__ == "__main__":
    main()
