"""False cliffs and found ones, in recorded noise.

    python benchmarks/planted.py

For each state of a machine that ``tests/fixtures/blocks`` has recorded: curves without any step,
and the same with one step of one and a half of the curve's own floor (what the map says that
noise can feign). Counts the curves on which a cliff or a misaligned dim is claimed though there is
none, and the planted steps that are found at their place.
"""

from __future__ import annotations

import argparse
import sys
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


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ask.add_argument("--curves", type=int, default=200)
    ask.add_argument("--blocks", default="24,48,148")
    given = ask.parse_args()
    draw = np.random.default_rng(0)
    total = np.zeros(4, int)
    for file in sorted(FOLDER.glob("*.parquet")):
        noise = recorded(file.stem)
        for blocks in map(int, given.blocks.split(",")):
            counts, floors = np.zeros(4, int), []
            for _ in range(given.curves):
                flat = curve_of_noise(noise, blocks, draw)
                curve = judged(flat)
                at = int(draw.integers(DIMS // 4, 3 * DIMS // 4))
                stepped = judged(planted(flat, at, 1.5 * curve.floor))
                found = any(c.after == FIRST + at for c in stepped.cliffs)
                counts += [1, bool(curve.cliffs), bool(curve.misaligned), found]
                floors.append(curve.floor)
            total += counts
            print(
                f"{file.stem:28s} {blocks:4d} blocks  floor {np.median(floors):6.1%}  "
                f"false cliffs {counts[1]}  false verdicts {counts[2]}  "
                f"steps found {counts[3]} of {counts[0]}",
                flush=True,
            )
    print(f"all: {total[1] / total[0]:.2%} false cliffs, {total[2] / total[0]:.2%} false verdicts, "
          f"{total[3] / total[0]:.2%} of the steps found, {total[0]} curves")  # fmt: skip


if __name__ == "__main__":
    main()
