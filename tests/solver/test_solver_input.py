"""What solved() takes, and how it refuses what it does not."""

import numpy as np
import pytest
from knapsack_reference import solved

from gacprof.core.errors import SolverError
from gacprof.solver import InfeasibleBudget, solve

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("costs", "values", "message"),
    [
        ([], [], "no class"),
        ([[1], []], [[1.0], []], "class 1 has no candidate"),
        (np.empty((2, 0), int), np.empty((2, 0)), "class 0 has no candidate"),
        ([[1, 2]], [[1.0, NAN]], "class 0, candidate 1: nan of values is not a finite number"),
        ([[1], [2]], [[1.0], [INF]], "class 1, candidate 0: inf of values"),
        ([[1], [-2]], [[1.0], [1.0]], "class 1, candidate 0: -2 of resource 0 is negative"),
        ([[1, 2**63]], [[1.0, 2.0]], "beyond 64 bits"),
        ([[1, 2**70]], [[1.0, 2.0]], "beyond 64 bits"),
        ([[0, 2**62 - 1], [0, 2**62 - 3]], [[0, 1]] * 2, "spread of the costs is beyond 64 bits"),
        ([[NAN]], [[1.0]], "nan of resource 0 is not a finite number"),
        ([["a"]], [[1.0]], "resource 0 must be numbers"),
        ([[None]], [[1.0]], "resource 0 must be numbers"),
        ([[True]], [[1.0]], "resource 0 must be numbers"),
        ([[1]], [["x"]], "values must be numbers"),
        ([[1]], [[None]], "values must be numbers"),
        ([[1]], [[1e308]], "end of a double's range"),
        ([[1], [1]], [[1e308], [1e308]], "end of a double's range"),
        ([[1, 2]], [[1.0]], "class 0 has 1 values but 2 resource 0"),
        ([[1]], [[1.0], [2.0]], "resource 0 has 1 classes, the values have 2"),
        ([1, 2], [1.0, 2.0], "one sequence of numbers per class"),
        (7, 7, "one sequence of numbers per class"),
        ({"a": [1]}, {"a": [1.0]}, "one sequence of numbers per class"),
        (np.ones((2, 2, 2), int), np.ones((2, 2, 2)), "must be numbers"),
    ],
)
def test_bad_classes_are_refused_in_one_line(costs, values, message):
    with pytest.raises(SolverError, match=message) as refusal:
        solved(costs, values, 10**20)
    assert "\n" not in str(refusal.value)


ONE = [[1]]


@pytest.mark.parametrize(
    ("limits", "asked", "message"),
    [
        *(([(ONE, budget)], {}, "must be a number") for budget in (NAN, "9", None, [9])),
        *((limits, {}, "limits are pairs") for limits in (5, [5], [(ONE, 1, 1)], "ab")),
        *(([], {"seconds": s}, "seconds must be a number from 0") for s in (NAN, -1, "a")),
        ([(ONE, 5), ([[-1.0]], 3.0)], {}, r"-1\.0 of resource 1 is negative"),
        ([(ONE, 5), ([[NAN]], 3.0)], {}, "nan of resource 1 is not a finite number"),
        ([(ONE, 5), ([[1.0]], NAN)], {}, "limit of resource 1 must be a number"),
    ],
)
def test_limits_are_pairs_of_numbers(limits, asked, message):
    with pytest.raises(SolverError, match=message):
        solve([[1.0]], limits, **asked)


def test_budgets_may_be_infinite_fractional_or_huge():
    costs, values = [[1, 5], [2, 9]], [[0.0, 1.0], [0.0, 1.0]]
    for budget in (INF, 10**40, 14):
        assert solved(costs, values, budget).choice == (1, 1)
    assert solved(costs, values, 13.99).takes[0] <= 13
    with pytest.raises(InfeasibleBudget):
        solved(costs, values, -INF)
    assert solved(costs, values, INF, [[1.0, 2.0], [1.0, 2.0]], INF).choice == (1, 1)


def test_costs_of_405_billion_parameters_are_exact():
    """An offset beyond 2^53 and odd steps: doubles would lose the last parameter."""
    base = 2**61
    costs = [[base // 8 + k * 405_000_000_001 for k in range(4)] for _ in range(8)]
    values = [[float(k) for k in range(4)] for _ in range(8)]
    budget = sum(row[0] for row in costs) + 11 * 405_000_000_001
    solution = solved(costs, values, budget)
    assert (solution.value, solution.takes, solution.proved) == (11.0, (budget,), True)
    assert solved(costs, values, budget - 1).value == 10.0


def test_input_of_any_integer_kind_and_never_changed():
    costs = np.array([[1, 4], [2, 7]])
    values = np.array([[1, 4], [2, 7]])
    before = costs.copy(), values.copy()
    expected = solved(costs.tolist(), values.tolist(), 8)
    for kind in (np.int8, np.uint16, np.int32, np.uint64, object):
        assert solved(costs.astype(kind), values, 8) == expected
    for kind in (np.int8, np.float32, np.longdouble, object):
        assert solved(costs, values.astype(kind), 8) == expected
    assert (costs == before[0]).all()
    assert (values == before[1]).all()


def test_many_identical_classes_end_within_the_work_cap():
    count = 30_000
    costs = np.tile([0, 3, 7], (count, 1))
    values = np.tile([0.0, 3.1, 6.7], (count, 1))
    solution = solved(costs, values, 3 * count + 37_457, work=2_000_000)
    assert solution.takes[0] <= 3 * count + 37_457
    assert 0 <= solution.gap < 3.1
    assert solved(costs[:, :2], values[:, :2], count).proved  # decided by their common measure
