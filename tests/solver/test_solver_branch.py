"""Splitting a hard part in halves and combining moves change the work, never the answer."""

from __future__ import annotations

import knapsack_cases as cases
import numpy as np
import pytest
from knapsack_reference import agrees, certify, enumerate_best, table_best

from gacprof.core.errors import SolverError
from gacprof.solver import branch, solve


@pytest.fixture
def splitting(monkeypatch):
    """Every part is split before anything else is tried, down to single candidates; how many."""
    monkeypatch.setattr(branch, "ALLOWANCE", 0)
    monkeypatch.setattr(branch, "PER_CLASS", 0)
    monkeypatch.setattr(branch, "WORTH", float("inf"))
    made = []
    halves = branch._halves

    def counted(*given):
        both = halves(*given)
        made.extend(both or ())
        return both

    monkeypatch.setattr(branch, "_halves", counted)
    return made


def test_split_to_the_end_it_equals_enumeration(splitting):
    rng = np.random.default_rng(900)
    for _ in range(80):
        case = cases.small(rng)
        best = enumerate_best(case.costs, case.whole, case.budget, case.latency, case.limit)
        agrees(case, best, two=True)
    assert len(splitting) > 50


def test_split_to_the_end_it_equals_the_dense_table(splitting):
    rng = np.random.default_rng(910)
    for _ in range(8):
        case = cases.medium(rng, two=True)
        eighths = [np.rint(row * 8).astype(int) for row in case.latency]
        best = table_best(case.costs, case.whole, case.budget, eighths, round(case.limit * 8))
        agrees(case, best, two=True)
    assert len(splitting) > 8


def _with_one_large_step(classes: int, seed: int):
    """One class has a single large step in latency that the dual branches on."""
    rng = np.random.default_rng(seed)
    ranks = np.arange(8, 40) * 8
    units = rng.choice([5120, 8192, 18432], classes)
    costs = [ranks * int(unit) for unit in units]
    values = [np.log(ranks) * rng.uniform(50, 400) for _ in range(classes)]
    latency = [np.round(3 + cost * rng.uniform(0.5, 1.5) * 1e-6, 3) for cost in costs]
    latency[0][len(ranks) // 2 :] += 20.0
    budget = int(sum(cost.mean() for cost in costs))
    return costs, values, budget, latency, float(sum(row.mean() for row in latency))


@pytest.mark.parametrize("seed", range(2))
def test_the_answer_is_that_of_an_unsplit_search(monkeypatch, seed):
    costs, values, budget, latency, limit = _with_one_large_step(40, seed)
    monkeypatch.setattr(branch, "ALLOWANCE", float("inf"))
    whole = solve(costs, values, budget, latency, limit)
    monkeypatch.setattr(branch, "ALLOWANCE", 20_000)
    parts = solve(costs, values, budget, latency, limit)
    assert whole.proved
    assert parts.proved
    assert parts.value == pytest.approx(whole.value, rel=1e-14)
    certify(parts, costs, values, budget, latency, limit)


def test_a_cap_amid_the_parts_leaves_a_bound_that_holds(monkeypatch):
    costs, values, budget, latency, limit = _with_one_large_step(30, 5)
    monkeypatch.setattr(branch, "ALLOWANCE", 0)
    monkeypatch.setattr(branch, "PER_CLASS", 0)
    best = solve(costs, values, budget, latency, limit)
    assert best.proved
    for work in (30_000, 100_000, 300_000):
        try:
            capped = solve(costs, values, budget, latency, limit, work=work)
        except SolverError:
            continue
        certify(capped, costs, values, budget, latency, limit)
        assert capped.value <= best.value <= capped.bound
