"""The paper's dynamic programming, and where it goes wrong."""

import numpy as np
import pytest
from knapsack_reference import solved
from published_dims import rows_of

from gacprof.core.errors import SolverError
from gacprof.solver import InfeasibleBudget, solve_gac


def _textbook(costs, values, budget, unit):
    """Algorithm 1 as printed: V[b] over whole units, one class after another."""
    units = budget // unit
    best, picks = [0.0] * (units + 1), []
    for row, worth in zip(costs, values, strict=True):
        after, pick = [-np.inf] * (units + 1), [-1] * (units + 1)
        for b in range(units + 1):
            for j, cost in enumerate(row):
                weight = cost // unit
                if weight <= b and best[b - weight] + worth[j] > after[b]:
                    after[b], pick[b] = best[b - weight] + worth[j], j
        best, picks = after, [*picks, pick]
    choice, left = [], units
    for row, pick in zip(reversed(costs), reversed(picks), strict=True):
        choice.append(pick[left])
        left -= row[pick[left]] // unit
    return tuple(reversed(choice))


def _random(rng, unit):
    count = int(rng.integers(1, 9))
    costs = [(rng.integers(1, 30, int(rng.integers(1, 6))) * unit).tolist() for _ in range(count)]
    values = [rng.random(len(row)).tolist() for row in costs]
    low, high = (sum(map(f, costs)) for f in (min, max))
    return costs, values, int(rng.integers(low, high + 1)) // unit * unit


def test_equals_the_papers_algorithm_and_is_exact_where_the_unit_divides_all_costs():
    rng = np.random.default_rng(0)
    for i in range(80):
        step, unit = [(1, 1), (8, 8), (8192, 8192), (7, 10)][i % 4]
        costs, values, budget = _random(rng, step)
        ours, exact = solve_gac(costs, values, budget, unit), solved(costs, values, budget)
        assert ours.choice == _textbook(costs, values, budget, unit)
        assert ours.cost == sum(costs[i][j] for i, j in enumerate(ours.choice))
        assert unit == 10 or ours.overrun == 0
        assert unit == 10 or ours.value == pytest.approx(exact.value, rel=1e-12)


def test_an_overrun_is_reported():
    costs, values = [[19, 9]] * 10, [[1.0, 0.0]] * 10
    down = solve_gac(costs, values, 100, 10)
    assert (down.cost, down.overrun) == (190, 90)
    with pytest.raises(InfeasibleBudget, match="10 units of 10, 100 in all"):
        solve_gac([[19]] * 10, [[1.0]] * 10, 90, 10)


def test_the_papers_unit_is_exact_on_its_published_dims():
    """u = 8 × the fewest rows divides every step, so that its table is exact up to the budget: the
    width per head of each projection of Llama-3-8B, with its parameters per unit."""
    heads = {"q": 32, "k": 8, "v": 8, "o": 32}  # its config: 32 heads of 128, 8 of them key-value
    unit = 8 * 4096 * heads["k"]
    rows = rows_of(lambda row: (int(row["dim"]), 4096 * heads[row["proj"]]))["fisher", "0.7"]
    windows = [(-(-max(8, dim - 16) // 8) * 8, min(128, dim + 16)) for dim, _ in rows]
    pairs = zip(windows, rows, strict=True)
    costs = [np.arange(low, high + 1, 8) * each for (low, high), (_, each) in pairs]
    values = [np.sqrt(row) for row in costs]
    budget = sum(dim * each for dim, each in rows) // unit * unit
    table = solve_gac(costs, values, budget, unit)
    assert table.overrun == 0
    assert table.value == pytest.approx(solved(costs, values, budget).value, rel=1e-12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"unit": 0}, "positive integer"),
        ({"unit": 1.5}, "positive integer"),
        ({"budget": 7.5}, "budget must be an integer"),
        ({"unit": 1, "costs": [[0, 10**12]], "budget": 10**12}, "larger unit"),
        ({"costs": [[-1]], "values": [[1.0]]}, "negative"),
    ],
)
def test_bad_input(arguments, message):
    given = {"costs": [[1, 2]], "values": [[1.0, 2.0]], "budget": 8, "unit": 2} | arguments
    with pytest.raises(SolverError, match=message):
        solve_gac(**given)
