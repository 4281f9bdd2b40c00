"""The solver beside enumeration: its choice fits, its bound holds, and it is the best or close."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from gacprof.core.errors import PlanError
from gacprof.planning import solver
from gacprof.planning.solver import solve

Rows = list[list[float]]


def draw_rows(draw: np.random.Generator, lengths: list[int], whole: bool = False) -> Rows:
    if whole:
        return [draw.integers(1, 50, n).astype(float).tolist() for n in lengths]
    return [draw.random(n).tolist() for n in lengths]


def total(rows: Rows, choice: tuple[int, ...]) -> float:
    return sum(row[i] for row, i in zip(rows, choice, strict=True))


@pytest.mark.parametrize("count", [0, 1, 2])
def test_the_choice_is_the_best_of_all(count: int) -> None:
    draw = np.random.default_rng(count)
    for _ in range(25):
        lengths = draw.integers(1, 6, draw.integers(1, 6)).tolist()
        values = draw_rows(draw, lengths)
        limits = []
        for _ in range(count):
            takes = draw_rows(draw, lengths)
            limits.append((takes, sum(map(min, takes)) + draw.random()))
        choices = list(product(*(range(n) for n in lengths)))
        fitting = [c for c in choices if all(total(rows, c) <= most for rows, most in limits)]
        if not fitting:
            with pytest.raises(PlanError):
                solve(values, limits)
            continue
        solution = solve(values, limits)
        assert all(total(r, solution.choice) <= most * (1 + 1e-6) for r, most in limits)
        best = max(total(values, choice) for choice in fitting)
        assert solution.value == pytest.approx(total(values, solution.choice))
        assert solution.value == pytest.approx(best, rel=1e-5) and solution.bound >= best - 1e-9


def test_many_options_are_priced_close_to_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    costs, values = [], []
    for _ in range(400):
        spectrum = np.sort(draw.random(512))[::-1].cumsum()
        values.append(spectrum[np.arange(1, 64) * 8].tolist())
        costs.append((np.arange(1, 64) * 8 * draw.choice([8192.0, 18432.0])).tolist())
    budget = 0.55 * sum(map(max, costs))
    priced = solve(values, [(costs, budget)])
    assert total(costs, priced.choice) <= budget and priced.value <= priced.bound
    assert priced.bound == pytest.approx(priced.value, rel=1e-4)
    assert sum(map(len, costs)) > solver.FEW_OPTIONS


def test_equal_classes_share_a_budget() -> None:
    """Of 30,000 equal experts a third can be large, though all have the same price."""
    values, costs = [[1.0, 2.0]] * 30_000, [[1.0, 2.0]] * 30_000
    solution = solve(values, [(costs, 40_000.0)])
    assert solution.value == 40_000.0 == pytest.approx(solution.bound)
