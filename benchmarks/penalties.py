"""Estimated costs of misalignment: each group left out, and models that were timed end to end.

    python benchmarks/penalties.py

The first table takes each row of ``gacprof/kernels/penalties.toml`` away and says whether the other
groups' interval holds it. The second is the model whose padding was timed on an H100, by ratios
and, with the extra ``third-party``, by rates; without it no time of the padded products is known.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from pruned_llama import pruned_llama, saved_us

from gacprof.diagnosing.diagnosis import diagnose
from gacprof.kernels.penalties import MEASURED, interval_of, measured, peak_of


def groups_left_out() -> Iterator[str]:
    """A line for each group's number, and the share of those within."""
    answers = []
    for parity, quantity in product(("odd", "even"), ("ratio", "tflops")):
        peaks = {peak_of(row["gpu"]): row["gpu"] for row in MEASURED[parity]}
        for gpu in peaks.values():
            numbers = [number for _, number in measured(gpu, parity, quantity)]
            rows = [r for r in MEASURED[parity] if peak_of(r["gpu"]) == peak_of(gpu)]
            names = [row["group"] for row in rows if quantity in row]
            for place, number in enumerate(numbers):
                others = numbers[:place] + numbers[place + 1 :]
                if len(others) < 2:
                    yield f"{gpu:5} {parity:4} {quantity:6} {number:6.3g} too few  {names[place]}"
                    continue
                low, high = interval_of(others)
                answers.append(low <= number <= high)
                word = "within" if answers[-1] else "OUTSIDE"
                bounds = f"[{low:.3g}, {high:.3g}]"
                yield f"{gpu:5} {parity:4} {quantity:6} {number:6.3g} {word} {bounds} {names[place]}"
    yield f"{sum(answers)} of {len(answers)} are within the interval of the other groups"


def end_to_end(folder: Path) -> Iterator[str]:
    """A line for each number of tokens at which the padding of a model was timed."""
    inventory = pruned_llama(folder)
    for tokens, saved in saved_us().items():
        cost = diagnose(inventory, "h100", tokens=[tokens]).slowdown
        answer = "no number"
        if cost is not None:
            answer = f"products ×{cost.low:.2g} to {cost.high:.2g} of the padded ones"
            if cost.padded_us is not None:
                low, high = (cost.padded_us * (bound - 1) / 1e3 for bound in (cost.low, cost.high))
                word = "within" if low <= saved / 1e3 <= high else "OUTSIDE"
                answer += f": {low:.3g} to {high:.3g} ms, {word}"
        yield f"H100, {tokens} tokens: padding saved {saved / 1e3:.3g} ms; estimated {answer}"


def main() -> None:
    print(*groups_left_out(), sep="\n")
    with tempfile.TemporaryDirectory() as folder:
        print(*end_to_end(Path(folder)), sep="\n")


if __name__ == "__main__":
    main()
