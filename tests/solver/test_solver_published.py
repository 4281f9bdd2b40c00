"""The published dims of Llama-3-8B: aligned in full, within the budget, at every ratio."""

from __future__ import annotations

import numpy as np
import pytest
from knapsack_reference import solved
from published_dims import rows_of

from gacprof.solver import solve_gac

HIDDEN = 4096
HEADS = {"q": 32, "k": 8, "v": 8, "o": 32}  # Llama-3-8B's config: 32 heads, 8 of them key-value
HEAD_DIM = 128


@pytest.fixture(scope="module")
def published():
    """(method, ratio) → the width per head of every projection, with its parameters per unit."""
    return rows_of(lambda row: (int(row["dim"]), HIDDEN * HEADS[row["proj"]]))


def _window(dim):
    """Multiples of 8 within 16 of the dim."""
    low, high = max(8, dim - 16), min(HEAD_DIM, dim + 16)
    return np.arange(-(-low // 8) * 8, high + 1, 8)


def test_the_papers_unit_is_exact_here(published):
    """u = 8 × the fewest rows divides every step, so that its table is exact up to the budget."""
    unit = 8 * HIDDEN * HEADS["k"]
    rows = published["fisher", "0.7"]
    costs = [_window(dim) * u for dim, u in rows]
    values = [np.sqrt(row) for row in costs]
    budget = sum(dim * u for dim, u in rows) // unit * unit
    table = solve_gac(costs, values, budget, unit)
    assert table.overrun == 0
    assert table.value == pytest.approx(solved(costs, values, budget).value, rel=1e-12)
