"""The published dims of Llama-3-8B: aligned in full, within the budget, at every ratio."""

from __future__ import annotations

import numpy as np
import pytest
from knapsack_reference import certify, solved
from published_dims import rows_of

from gacprof.solver import solve_gac

HIDDEN = 4096
HEADS = {"q": 32, "k": 8, "v": 8, "o": 32}  # Llama-3-8B's config: 32 heads, 8 of them key-value
HEAD_DIM = 128


@pytest.fixture(scope="module")
def published():
    """(method, ratio) → the width per head of every projection, with its parameters per unit."""
    return rows_of(lambda row: (int(row["dim"]), HIDDEN * HEADS[row["proj"]]))


def _window(dim):
    """Multiples of 8 within 16 of the dim."""
    low, high = max(8, dim - 16), min(HEAD_DIM, dim + 16)
    return np.arange(-(-low // 8) * 8, high + 1, 8)


def test_all_scores_and_ratios_are_there(published):
    assert len(published) == 4 * 5
    assert {len(rows) for rows in published.values()} == {128}


@pytest.mark.parametrize("objective", ["gac", "energy"])
def test_planned_to_full_alignment_within_budget(published, objective):
    for rows in list(published.values())[:: 3 if objective == "gac" else 1]:
        budget = sum(dim * unit for dim, unit in rows)
        sizes = [_window(dim) for dim, _ in rows]
        costs = [size * unit for size, (_, unit) in zip(sizes, rows, strict=True)]
        if objective == "gac":  # Eq. 4 with an uninformative score
            values = [(c - dim * u) * 1e-6 for c, (dim, u) in zip(costs, rows, strict=True)]
        else:  # any concave objective will do
            values = [-((HEAD_DIM + 1 - size) ** 1.5) for size in sizes]
        solution = solved(costs, values, budget)
        certify(solution, costs, values, budget)
        assert solution.proved
        assert all(sizes[i][j] % 8 == 0 for i, j in enumerate(solution.choice))
        assert budget - solution.takes[0] < 8 * HIDDEN * 32  # less than one step of one projection


def test_the_papers_unit_is_exact_here(published):
    """u = 8 × the fewest rows divides every step, so that its table is exact up to the budget."""
    unit = 8 * HIDDEN * HEADS["k"]
    rows = published["fisher", "0.7"]
    costs = [_window(dim) * u for dim, u in rows]
    values = [np.sqrt(row) for row in costs]
    budget = sum(dim * u for dim, u in rows) // unit * unit
    table = solve_gac(costs, values, budget, unit)
    assert table.overrun == 0
    assert table.value == pytest.approx(solved(costs, values, budget).value, rel=1e-12)
