"""What is true, found the slow way: enumeration, a dense table, and a certificate checked anew.

Values are given as int64 ``whole`` in some unit, so that the references are exact.
"""

import math

import numpy as np
import pytest

from gacprof.solver import InfeasibleBudget, solve

NOTHING = -(2**62)


def enumerate_best(costs, whole, budget, latency=None, limit=None):
    """The best Σ whole over all choices that fit, or None. Latencies must sum exactly."""
    cost, value, time = (np.zeros(1, dtype=kind) for kind in (np.int64, np.int64, np.float64))
    for i in range(len(costs)):
        cost = np.add.outer(cost, np.asarray(costs[i], dtype=np.int64)).ravel()
        value = np.add.outer(value, np.asarray(whole[i], dtype=np.int64)).ravel()
        if latency is not None:
            time = np.add.outer(time, np.asarray(latency[i])).ravel()
    fits = cost <= budget
    if limit is not None:
        fits &= time <= limit
    return int(value[fits].max()) if fits.any() else None


def table_best(costs, whole, budget, latency=None, limit=0):
    """The same by a table over every budget (and every whole limit)."""
    best = np.full((budget + 1, limit + 1), NOTHING)
    best[0, 0] = 0
    for i in range(len(costs)):
        after = np.full_like(best, NOTHING)
        times = latency[i] if latency is not None else np.zeros(len(costs[i]), dtype=int)
        for weight, value, time in zip(costs[i], whole[i], times, strict=True):
            if weight <= budget and time <= limit:
                before = best[: budget + 1 - weight, : limit + 1 - time]
                total = np.where(before > NOTHING, before + value, NOTHING)
                np.maximum(after[weight:, time:], total, out=after[weight:, time:])
        best = after
    return None if best.max() == NOTHING else int(best.max())


def limits(costs, budget, latency=None, limit=None):
    return [(costs, budget)] + ([] if latency is None else [(latency, limit)])


def solved(costs, values, budget, latency=None, limit=None, **caps):
    return solve(values, limits(costs, budget, latency, limit), **caps)


def certify(solution, costs, values, budget, latency=None, limit=None):
    """Everything a solution claims about itself, recomputed from the input alone."""
    assert len(solution.choice) == len(costs)
    assert all(0 <= j < len(costs[i]) for i, j in enumerate(solution.choice))
    taken = [int(costs[i][j]) for i, j in enumerate(solution.choice)]
    worth = [float(values[i][j]) for i, j in enumerate(solution.choice)]
    assert solution.takes[0] == sum(taken) <= budget
    assert solution.value == math.fsum(worth)
    assert solution.value <= solution.bound
    assert solution.gap == solution.bound - solution.value
    if latency is not None:
        times = [float(latency[i][j]) for i, j in enumerate(solution.choice)]
        assert solution.takes[1] == math.fsum(times) <= limit


def agrees(case, best, *, two):
    """The solver finds ``best`` to the rounding of doubles and proves it, or knows that nothing
    fits."""
    asked = limits(case.costs, case.budget, *((case.latency, case.limit) if two else ()))
    if best is None:
        with pytest.raises(InfeasibleBudget):
            solve(case.values, asked)
        return
    solution = solve(case.values, asked)
    certify(solution, case.costs, case.values, case.budget, *(asked[1] if two else ()))
    assert solution.proved, case
    assert solution.value >= best * case.unit - near(case, two)
    assert solution.bound >= best * case.unit - near(case, False)


def near(case, two):
    """What rounding may cost: with one resource that of doubles, with two HiGHS's gap."""
    size = sum(float(abs(row).max()) for row in case.whole) * case.unit
    return (2e-9 if two else 1e-14) * size
