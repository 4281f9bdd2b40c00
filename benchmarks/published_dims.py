"""The published dims of Llama-3-8B, aligned four ways within the budget that they came with.

    python benchmarks/published_dims.py > reports/published-dims.md

Every (score, ratio) of the paper's figures 2 and 11 is one knapsack: 128 projections, each at
multiples of 8 between half and twice its dim; the budget is what the published dims take. A dim
counts as a rank, d·(in + out) parameters. The quality is the tail of a *stated, synthetic*
spectrum, σ²ᵢ ∝ 1/i over 128 directions and the same for every projection, since the figures
hold no spectra: it orders the methods, it says nothing of Llama.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gacprof.solver import solve, solve_gac

DIMS = Path(__file__).parents[1] / "tests/fixtures/published_dims/llama3_8b_head_dims.csv"
UNITS = {"q": 4096 + 4096, "k": 4096 + 1024, "v": 4096 + 1024, "o": 4096 + 4096}
FEWEST_ROWS = 1024  # of k_proj and v_proj
FULL, STEP = 128, 8
ENERGY = [1 / (i + 1) for i in range(FULL)]
TAIL = [sum(ENERGY[d:]) / sum(ENERGY) for d in range(FULL + 1)]


@dataclass(frozen=True)
class Weight:
    dim: int
    unit: int

    @property
    def candidates(self) -> list[int]:
        """Multiples of 8 from half to twice the dim, within [8, 128]."""
        low, high = max(STEP, -(-self.dim // 2)), min(FULL, max(STEP, 2 * self.dim))
        first = -(-low // STEP) * STEP
        return list(range(min(first, FULL), high + 1, STEP)) or [STEP]


def cases() -> Iterator[tuple[str, str, list[Weight]]]:
    """(score, ratio, its 128 projections), in the file's order."""
    found: dict[tuple[str, str], list[Weight]] = defaultdict(list)
    with DIMS.open() as file:
        for row in csv.DictReader(file):
            key = (row["method"], row["retain_ratio"])
            found[key].append(Weight(int(row["dim"]), UNITS[row["proj"]]))
    for (score, ratio), weights in sorted(found.items()):
        yield score, ratio, weights


def naive(rounded: Callable[[int], int]) -> Callable[[list[Weight], int], list[int]]:
    return lambda weights, budget: [min(FULL, max(STEP, rounded(w.dim))) for w in weights]


def paper(weights: list[Weight], budget: int) -> list[int]:
    """Eq. 4 with equal scores, by Algorithm 1 in units of 8·(fewest rows of a weight)."""
    costs = [[d * w.unit for d in w.candidates] for w in weights]
    values = [[float((d - w.dim) * w.unit) for d in w.candidates] for w in weights]
    solution = solve_gac(costs, values, budget, 8 * FEWEST_ROWS)
    return [w.candidates[j] for w, j in zip(weights, solution.choice, strict=True)]


def ours(weights: list[Weight], budget: int) -> list[int]:
    costs = [[d * w.unit for d in w.candidates] for w in weights]
    values = [[-TAIL[d] for d in w.candidates] for w in weights]
    solution = solve(values, [(costs, budget)])
    assert solution.proved
    return [w.candidates[j] for w, j in zip(weights, solution.choice, strict=True)]


METHODS = {
    "down to 8": naive(lambda d: d // STEP * STEP),
    "nearest 8": naive(lambda d: (d + STEP // 2) // STEP * STEP),
    "up to 8": naive(lambda d: -(-d // STEP) * STEP),
    "paper's DP": paper,
    "ours": ours,
}


def main() -> None:
    print("# Published dims, aligned within their budget\n")
    print((__doc__ or "").split("\n\n", 2)[2].strip() + "\n")
    print("Made by `python benchmarks/published_dims.py`. Per method: parameters against the")
    print("budget, and the tail energy lost, summed over the projections (lower is better).")
    print("Ours is proved optimal in every row; every aligned method is 100 % multiples of 8.\n")
    print(
        "| score | ratio | aligned as published | tail as published | " + " | ".join(METHODS) + " |"
    )
    print("|---" * (4 + len(METHODS)) + "|")
    for score, ratio, weights in cases():
        budget = sum(w.dim * w.unit for w in weights)
        aligned = sum(w.dim % STEP == 0 for w in weights) / len(weights)
        tail = sum(TAIL[w.dim] for w in weights)
        cells = []
        for method in METHODS.values():
            chosen = method(weights, budget)
            cost = sum(d * w.unit for d, w in zip(chosen, weights, strict=True))
            lost = sum(TAIL[d] for d in chosen)
            over = "**" if cost > budget else ""
            cells.append(f"{over}{cost / budget - 1:+.2%}{over}, {lost:.2f}")
        print(f"| {score} | {ratio} | {aligned:.0%} | {tail:.2f} | " + " | ".join(cells) + " |")
    print("\nBold: over budget.")


if __name__ == "__main__":
    main()
