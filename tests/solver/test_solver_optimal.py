"""The best choice is found: against enumeration, a dense table, and HiGHS at gap 0."""

import knapsack_cases as cases
import numpy as np
import pytest
from knapsack_reference import agrees, certify, enumerate_best, near, solved, table_best
from scipy.optimize import Bounds, LinearConstraint, milp

from gacprof.solver import one, solve


@pytest.mark.parametrize(("two", "count"), [(False, 250), (True, 100)])
def test_it_equals_enumeration(two, count):
    rng = np.random.default_rng(100 * two)
    for _ in range(count):
        case = cases.small(rng)
        times = (case.latency, case.limit) if two else ()
        agrees(case, enumerate_best(case.costs, case.whole, case.budget, *times), two=two)


@pytest.mark.parametrize(("two", "count"), [(False, 80), (True, 20)])
def test_dozens_of_classes_equal_the_dense_table(two, count):
    rng = np.random.default_rng(200 + 100 * two)
    for _ in range(count):
        case = cases.medium(rng, two=two)
        eighths = [np.rint(row * 8).astype(int) for row in case.latency]
        times = (eighths, round(case.limit * 8)) if two else ()
        agrees(case, table_best(case.costs, case.whole, case.budget, *times), two=two)


def test_the_answer_does_not_depend_on_the_first_core(monkeypatch):
    monkeypatch.setattr(one, "FIRST_CORE", 1)
    rng = np.random.default_rng(400)
    for _ in range(60):
        case = cases.small(rng)
        agrees(case, enumerate_best(case.costs, case.whole, case.budget), two=False)


def test_times_alone_are_a_resource_too():
    """Doubles, with no budget beside them: exact to the last eighth."""
    rng = np.random.default_rng(500)
    for _ in range(80):
        case = cases.small(rng)
        top = sum(int(row.max()) for row in case.costs)
        best = enumerate_best(case.costs, case.whole, top, case.latency, case.limit)
        found = solve(case.values, [(case.latency, case.limit)])
        assert found.proved and found.takes[0] <= case.limit
        assert found.value == pytest.approx(best * case.unit, rel=1e-12, abs=near(case, False))


def _highs(costs, values, budget, latency=None, limit=None):
    owner = np.repeat(np.arange(len(costs)), [len(row) for row in costs])
    one_each = (owner == np.arange(len(costs))[:, None]).astype(float)
    rows = [LinearConstraint(one_each, 1, 1), LinearConstraint(np.concatenate(costs), ub=budget)]
    if latency is not None:
        rows.append(LinearConstraint(np.concatenate(latency), ub=limit))
    found = milp(
        -np.concatenate(values),
        constraints=rows,
        integrality=np.ones(len(owner)),
        bounds=Bounds(0, 1),
        options={"mip_rel_gap": 0},
    )
    assert found.status == 0
    return -found.fun


@pytest.mark.parametrize("two", [False, True])
def test_equals_highs_at_gap_zero(two):
    rng = np.random.default_rng(7)
    for _ in range(2):
        count = int(rng.integers(5, 25))
        costs = [np.sort(rng.integers(1, 400, 6)) for _ in range(count)]
        values = [np.sort(rng.random(6)) ** 2 for _ in range(count)]
        latency = [rng.integers(1, 30, 6).astype(float) for _ in range(count)]
        low, high = (sum(int(f(row)) for row in costs) for f in (np.min, np.max))
        budget = (low + high) // 2
        extra = ()
        if two:
            fastest = sum(row.min() for row in latency)
            extra = (latency, float(fastest + 6 * count))
        solution = solved(costs, values, budget, *extra)
        certify(solution, costs, values, budget, *extra)
        assert solution.proved
        assert solution.value == pytest.approx(_highs(costs, values, budget, *extra), rel=1e-9)
