"""False and true findings in recorded noise: the level of the judge, end to end.

    python benchmarks/planted.py [--curves 200] [--blocks 12,24,48,148]

For each state of a machine that ``tests/fixtures/blocks`` has recorded, and each number of blocks:
*flat* curves of noise, on which any cliff and any misaligned size is false; curves with a step of
each height, which is found at its place or not; and ones of which every size that is no multiple of
8 takes 4 % more, twice the tolerance, on which any such size that is called safe is false.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from math import log1p
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from recorded_noise import (
    COUNT,
    FIRST,
    SIZES,
    STATES,
    Noise,
    curve_of_noise,
    judged_curve,
    recorded,
    stepped,
)

STEPS = (0.05, 0.1, 0.2, 0.4)
SLOWER = np.array([log1p(0.04) * (size % 8 != 0) for size in SIZES])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--curves", type=int, default=200)
    parser.add_argument("--blocks", default="12,24,48,148")
    options = parser.parse_args()
    draw = np.random.default_rng(0)
    by_blocks: dict[int, Counter[str]] = {}
    for state in STATES:
        noise = recorded(state)
        for blocks in map(int, options.blocks.split(",")):
            counts = rates(noise, blocks, options.curves, draw)
            print(row(f"{state} {blocks}", counts), flush=True)
            by_blocks.setdefault(blocks, Counter()).update(counts)
    for blocks, counts in by_blocks.items():
        print(row(f"all states {blocks}", counts))


def rates(noise: list[Noise], blocks: int, curves: int, draw: np.random.Generator) -> Counter[str]:
    """Counts over so many curves."""
    counts: Counter[str] = Counter(curves=curves)
    for _ in range(curves):
        flat = curve_of_noise(noise, blocks, draw)
        curve = judged_curve(flat)
        counts["flat with a cliff"] += bool(curve.cliffs)
        counts["flat with a misaligned size"] += bool(curve.with_verdict("misaligned"))
        at = int(draw.integers(COUNT // 4, 3 * COUNT // 4))
        for step in STEPS:
            cliffs = judged_curve(stepped(flat, at, step)).cliffs
            counts[f"step {step:.0%}"] += any(cliff.after == FIRST + at for cliff in cliffs)
        slowed = judged_curve(flat + SLOWER)
        safe, misaligned = slowed.with_verdict("safe"), slowed.with_verdict("misaligned")
        counts["slow called safe"] += any(size % 8 for size in safe)
        counts["fast called misaligned"] += any(size % 8 == 0 for size in misaligned)
        counts["decided"] += len(safe) + len(misaligned)
    return counts


def row(name: str, counts: Counter[str]) -> str:
    """One line: curves with a finding, as shares."""
    curves = counts["curves"]
    shares = [
        f"{what} {number / curves / (COUNT if what == 'decided' else 1):.1%}"
        for what, number in counts.items()
        if what != "curves"
    ]
    return f"{name:34s} {', '.join(shares)}"


if __name__ == "__main__":
    main()
