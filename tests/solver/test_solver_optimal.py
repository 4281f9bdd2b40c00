"""The best choice is found: against enumeration, a dense table, and HiGHS at gap 0."""

from __future__ import annotations

import knapsack_cases as cases
import numpy as np
import pytest
from knapsack_reference import agrees, certify, enumerate_best, near, solved, table_best
from scipy.optimize import Bounds, LinearConstraint, milp

from gacprof.solver import one, solve


def test_one_resource_equals_enumeration():
    rng = np.random.default_rng(0)
    for _ in range(250):
        case = cases.small(rng)
        agrees(case, enumerate_best(case.costs, case.whole, case.budget), two=False)


def test_two_resources_equal_enumeration():
    rng = np.random.default_rng(100)
    for _ in range(100):
        case = cases.small(rng)
        best = enumerate_best(case.costs, case.whole, case.budget, case.latency, case.limit)
        agrees(case, best, two=True)


def test_dozens_of_classes_equal_the_dense_table():
    rng = np.random.default_rng(200)
    for _ in range(80):
        case = cases.medium(rng, two=False)
        agrees(case, table_best(case.costs, case.whole, case.budget), two=False)


def test_two_resources_equal_the_dense_table():
    rng = np.random.default_rng(300)
    for _ in range(20):
        case = cases.medium(rng, two=True)
        eighths = [np.rint(row * 8).astype(int) for row in case.latency]
        best = table_best(case.costs, case.whole, case.budget, eighths, round(case.limit * 8))
        agrees(case, best, two=True)


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


def _highs(costs, values, budget, latency=None, limit=None) -> float:
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
