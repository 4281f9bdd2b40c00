"""Estimated costs of misalignment: each group left out, and models that were timed end to end.

    python benchmarks/penalties.py

The first table takes each row of ``gacprof/kernels/penalties.toml`` away and says whether the other
groups' interval holds it. The second is the one model whose padding was timed on an H100, by a
group whose kernels are a row of the table: by ratios and, with the extra ``third-party``, by rates
and in ms, as if all its widths were even and as if all were odd, for they are not published.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from groups_left_out import groups_left_out
from pruned_llama import WIDTHS, pruned_llama, saved_us

from gacprof.diagnosing.diagnosis import diagnose


def coverage() -> Iterator[str]:
    """A line for each group's number, and how many are within the interval of the others."""
    answers = list(groups_left_out())
    for answer in answers:
        word = "too few"
        if answer.bounds is not None:
            low, high = answer.bounds
            word = f"{'within' if answer.is_within else 'OUTSIDE'} {low:.3g} to {high:.3g}"
        name = f"{answer.gpu:5} {answer.parity:4} {answer.quantity:6} {answer.number:6.3g}"
        yield f"{name} {word:20} {answer.group}"
    answered = [answer.is_within for answer in answers if answer.bounds]
    yield f"{sum(answered)} of {len(answered)} are within the interval of the other groups"


def end_to_end(folder: Path) -> Iterator[str]:
    """A line for each number of tokens at which the padding of a model was timed, and parity."""
    models = {parity: pruned_llama(folder / parity, width) for parity, width in WIDTHS.items()}
    for (tokens, saved), parity in product(saved_us().items(), models):
        cost = diagnose(models[parity], "h100", tokens=[tokens]).slowdown
        answer = "no number"
        if cost is not None:
            answer = f"products ×{cost.low:.2g} to {cost.high:.2g} of the padded ones"
            if cost.padded_us is not None:
                low, high = (cost.padded_us * (bound - 1) / 1e3 for bound in (cost.low, cost.high))
                word = "within" if low <= saved / 1e3 <= high else "OUTSIDE"
                answer += f": {low:.3g} to {high:.3g} ms, {word}"
        yield f"H100, {tokens} tokens: padding saved {saved / 1e3:.3g} ms; {parity}: {answer}"


def main() -> None:
    print(*coverage(), sep="\n")
    with tempfile.TemporaryDirectory() as folder:
        print(*end_to_end(Path(folder)), sep="\n")


if __name__ == "__main__":
    main()
