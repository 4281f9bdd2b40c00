"""What a solution says of itself holds, also when the search is cut short."""

import math
from fractions import Fraction

import knapsack_cases as cases
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from knapsack_reference import certify, enumerate_best, near, solved, table_best

from gacprof.core.errors import SolverError
from gacprof.solver import InfeasibleBudget, one

numbers = st.floats(-1e12, 1e12) | st.floats(-1e-12, 1e-12) | st.integers(-3, 3).map(float)
classes = st.lists(
    st.lists(st.tuples(st.integers(0, 2**61 // 8), numbers, st.floats(0, 1e6)), min_size=1),
    min_size=1,
    max_size=5,
)


@settings(max_examples=50, deadline=None)
@given(classes, st.floats(0, 1), st.floats(0, 1))
def test_any_doubles_and_any_costs(rows, share, pace):
    costs = [[c for c, _, _ in row] for row in rows]
    values = [[v for _, v, _ in row] for row in rows]
    latency = [[t for _, _, t in row] for row in rows]
    low, high = (sum(map(f, costs)) for f in (min, max))
    budget = low + int(Fraction(share) * (high - low))
    fast, slow = (math.fsum(map(f, latency)) for f in (min, max))
    limit = fast + pace * (slow - fast)
    certify(solved(costs, values, budget), costs, values, budget)
    try:
        found = solved(costs, values, budget, latency, limit)
        certify(found, costs, values, budget, latency, limit)
    except InfeasibleBudget as error:
        assert error.nearest > (limit if error.resource else budget)
    except SolverError as error:
        assert "allow more time" in str(error)  # HiGHS keeps no limit to the last digit


def _hard(count=60, candidates=12, top=10**9, seed=3):
    """Strongly correlated, with random costs: the fractional bound is of little help."""
    rng = np.random.default_rng(seed)
    costs = [np.sort(rng.integers(1, top, candidates)) for _ in range(count)]
    values = [row + top / 10 * (np.arange(candidates) > 0) for row in costs]
    budget = int(sum(int(row[0] + row[-1]) for row in costs) // 2)
    return costs, values, budget


@pytest.mark.parametrize(
    ("caps", "most_states", "said"),
    [
        ({"work": 50_000}, one.MOST_STATES, "work cap"),
        ({"seconds": 0}, one.MOST_STATES, "time limit"),
        ({}, 2048, "too large"),
    ],
)
def test_a_search_that_is_cut_short_states_its_gap(monkeypatch, caps, most_states, said):
    monkeypatch.setattr(one, "MOST_STATES", most_states)
    costs, values, budget = _hard()
    solution = solved(costs, values, budget, **caps)
    certify(solution, costs, values, budget)
    assert not solution.proved and solution.gap > 0
    assert said in solution.notes[0]


def test_interruption_returns_the_incumbent():
    costs, values, budget = _hard()
    heard = []

    def interrupt(value, bound, what):
        heard.append((value, bound))
        if len(heard) == 2:
            raise KeyboardInterrupt

    solution = solved(costs, values, budget, progress=interrupt)
    certify(solution, costs, values, budget)
    assert not solution.proved
    assert solution.interrupted
    assert "interrupted" in solution.notes[0]
    assert solution.value >= heard[-1][0]


@pytest.mark.parametrize("work", [0, 3_000, 30_000])
def test_a_search_cut_short_still_bounds_the_optimum(work):
    rng = np.random.default_rng(work)
    for _ in range(40):
        case = cases.medium(rng, two=False)
        best = table_best(case.costs, case.whole, case.budget)
        solution = solved(case.costs, case.values, case.budget, work=work)
        certify(solution, case.costs, case.values, case.budget)
        assert solution.bound >= best * case.unit - near(case, False)
        if solution.proved:
            assert solution.value == pytest.approx(best * case.unit, rel=1e-12)


def test_the_least_budget_that_would_do_is_named():
    rng = np.random.default_rng(1)
    refused = 0
    for _ in range(150):
        case = cases.small(rng)
        best = enumerate_best(case.costs, case.whole, case.budget, case.latency, case.limit)
        if best is not None:
            continue
        with pytest.raises(InfeasibleBudget) as refusal:
            solved(case.costs, case.values, case.budget, case.latency, case.limit)
        least = refusal.value.nearest
        assert refusal.value.resource == 0
        assert str(int(least)) in str(refusal.value)
        solved(case.costs, case.values, least, case.latency, case.limit)
        with pytest.raises(InfeasibleBudget):
            solved(case.costs, case.values, least - 1, case.latency, case.limit)
        refused += 1
    assert refused > 5


def test_budget_and_limit_below_the_minima():
    with pytest.raises(InfeasibleBudget, match="the least of every class takes 8") as refusal:
        solved([[5, 9], [3, 4]], [[1, 2], [1, 2]], 7)
    assert (refusal.value.resource, refusal.value.nearest) == (0, 8)
    with pytest.raises(InfeasibleBudget, match=r"least is 1\.5") as refusal:
        solved([[5, 9], [3, 4]], [[1, 2], [1, 2]], 9, [[1.0, 2.0], [0.5, 2.0]], 1.25)
    assert (refusal.value.resource, refusal.value.nearest) == (1, 1.5)


def test_a_limit_that_a_known_choice_meets_exactly_admits_it():
    rng = np.random.default_rng(0)
    for _ in range(30):
        count = int(rng.integers(2, 9))
        latency = [np.round(rng.random(5) * 20, 3) for _ in range(count)]
        costs = [rng.integers(0, 100, 5) for _ in range(count)]
        values = [rng.random(5) for _ in range(count)]
        known = rng.integers(0, 5, count)
        limit = math.fsum(latency[i][j] for i, j in enumerate(known))
        budget = sum(int(costs[i][j]) for i, j in enumerate(known))
        worth = math.fsum(values[i][j] for i, j in enumerate(known))
        solution = solved(costs, values, budget, latency, limit)
        certify(solution, costs, values, budget, latency, limit)
        assert solution.value >= worth - 2e-9 * count


def test_ties_go_to_the_cheaper_then_the_earlier_candidate():
    """No class could take a cheaper candidate worth as much, nor an earlier equal one."""
    rng = np.random.default_rng(8)
    for _ in range(120):
        case = cases.small(rng)
        solution = solved(case.costs, case.values, case.budget)
        for i, j in enumerate(solution.choice):
            mine = (case.costs[i][j], j)
            for k in range(len(case.costs[i])):
                if case.whole[i][k] >= case.whole[i][j]:
                    assert (case.costs[i][k], k) >= mine
    assert solved([[3, 3, 2, 2]], [[1, 1, 1, 1]], 9).choice == (2,)
