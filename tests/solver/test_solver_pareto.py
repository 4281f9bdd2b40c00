"""The grid of two resources."""

from __future__ import annotations

import numpy as np
import pytest

from gacprof.core.errors import SolverError
from gacprof.solver import InfeasibleBudget, pareto, solve


def test_the_grid_holds_exact_cells():
    rng = np.random.default_rng(2)
    costs = [rng.integers(1, 50, 5) for _ in range(12)]
    values = [rng.random(5) for _ in range(12)]
    latency = [rng.random(5) * 9 for _ in range(12)]
    grid = pareto(costs, values, latency, budgets=4, limits=5)
    assert (len(grid.budgets), len(grid.limits)) == (4, 5)
    for budget, row in zip(grid.budgets, grid.cells, strict=True):
        for limit, cell in zip(grid.limits, row, strict=True):
            try:
                assert cell == solve(costs, values, budget, latency, limit)
            except InfeasibleBudget:
                assert cell is None
    assert grid.cells[-1][-1].value == solve(costs, values, 10**9).value
    chosen = pareto(costs, values, latency, budgets=[300], limits=[40.0, 60.0])
    assert (chosen.budgets, chosen.limits) == ((300,), (40.0, 60.0))


def test_bad_input():
    with pytest.raises(SolverError, match="at least two"):
        pareto([[1]], [[1.0]], [[1.0]], budgets=1)


def test_a_small_range_of_budgets_has_no_line_twice():
    grid = pareto([[1, 2], [2, 3]], [[0.0, 1.0], [0.0, 1.0]], [[1.0, 2.0], [1.0, 2.0]])
    assert grid.budgets == (3, 4, 5)


def test_no_budgets_are_no_grid():
    with pytest.raises(SolverError, match="a grid needs budgets"):
        pareto([[1, 2]], [[0.0, 1.0]], [[1.0, 2.0]], budgets=[])
