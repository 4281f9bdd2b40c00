"""The paper's objective and its dynamic programming, to reproduce it and to compare with.

"Why Smaller Is Slower? Dimensional Misalignment in Compressed LLMs", arXiv 2604.09595, section 4:
Eq. 4 and Algorithm 1. Eq. 4 is linear in the parameters, so that its optimum puts nearly every dim
at an end of its range: it is sound only within about one alignment step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gacprof.core.errors import PlanError

MAX_WINDOW = 0.1
"""How far from a dim's size Eq. 4 is followed: about an alignment step, as in the paper's example
(107.3 → 96, 104, 112, 128). Wider windows lost more energy than no plan at all."""

Rows = Sequence[Sequence[float]]


def solve_paper(values: Rows, costs: Rows, budget: int, unit: int) -> tuple[int, ...]:
    """Algorithm 1: one option a class, the most Σ value with Σ ⌊cost / unit⌋ ≤ ⌊budget / unit⌋.

    The paper's unit is 8 · the least number of rows. It is exact only where that divides every
    cost; else the choice may exceed the budget. Raises :class:`PlanError` where nothing fits.
    """
    units = [[int(cost) // unit for cost in row] for row in costs]
    room = budget // unit
    best = np.zeros(room + 1)
    picks = np.zeros((len(units), room + 1), np.int32)
    for row, (weights, row_values) in enumerate(zip(units, values, strict=True)):
        after = np.full(room + 1, -np.inf)
        for option, (weight, value) in enumerate(zip(weights, row_values, strict=True)):
            total = best[: max(0, room + 1 - weight)] + value
            is_better = total > after[weight:]
            after[weight:][is_better] = total[is_better]
            picks[row, weight:][is_better] = option
        best = after
    if np.isinf(best[room]):
        raise PlanError(f"nothing fits a budget of {budget}: raise it")
    choice: list[int] = []
    for row in reversed(range(len(units))):
        choice.append(int(picks[row, room]))
        room -= units[row][choice[-1]]
    return tuple(reversed(choice))
