"""The supported frontier and the grid of two resources."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from gacprof.core.errors import SolverError
from gacprof.solver import InfeasibleBudget, pareto, solve


def _totals(costs, values):
    """(cost, value) of every choice there is."""
    for choice in itertools.product(*(range(len(row)) for row in costs)):
        cost = sum(int(costs[i][j]) for i, j in enumerate(choice))
        yield cost, math.fsum(values[i][j] for i, j in enumerate(choice))


def _random(rng, *, whole):
    count = int(rng.integers(1, 6))
    costs = [rng.integers(0, 30, int(rng.integers(1, 6))) for _ in range(count)]
    kind = (lambda n: rng.integers(-5, 20, n).astype(float)) if whole else rng.random
    return costs, [kind(len(row)) for row in costs]


@pytest.mark.parametrize("whole", [True, False])
def test_the_frontier_is_the_upper_hull_of_all_choices(whole):
    rng = np.random.default_rng(0)
    for _ in range(40):
        costs, values = _random(rng, whole=whole)
        frontier, everything = pareto(costs, values), list(_totals(costs, values))
        points = list(zip(frontier.costs.tolist(), frontier.values.tolist(), strict=True))
        assert points[0][0] == min(cost for cost, _ in everything)
        assert points[-1][1] == pytest.approx(max(value for _, value in everything))
        for (c0, v0), (c1, v1) in itertools.pairwise(points):
            assert c1 > c0
            assert v1 > v0
            for cost, value in everything:  # nothing lies above the line through two neighbours
                assert value <= v0 + (cost - c0) * (v1 - v0) / (c1 - c0) + 1e-9


def test_every_point_is_a_choice_and_optimal_for_its_budget():
    rng = np.random.default_rng(1)
    for _ in range(25):
        costs, values = _random(rng, whole=True)
        frontier = pareto(costs, values)
        for k in range(len(frontier)):
            choice = frontier.choice(k)
            assert sum(int(costs[i][j]) for i, j in enumerate(choice)) == frontier.costs[k]
            assert sum(values[i][j] for i, j in enumerate(choice)) == frontier.values[k]
            assert solve(costs, values, int(frontier.costs[k])).value == frontier.values[k]
        assert frontier.choice(-1) == frontier.choice(len(frontier) - 1)


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
    with pytest.raises(SolverError, match="beyond 64 bits"):
        pareto([[2**62]] * 4, [[1.0]] * 4)


def test_a_small_range_of_budgets_has_no_line_twice():
    grid = pareto([[1, 2], [2, 3]], [[0.0, 1.0], [0.0, 1.0]], [[1.0, 2.0], [1.0, 2.0]])
    assert grid.budgets == (3, 4, 5)


def test_no_budgets_are_no_grid():
    with pytest.raises(SolverError, match="a grid needs budgets"):
        pareto([[1, 2]], [[0.0, 1.0]], [[1.0, 2.0]], budgets=[])
