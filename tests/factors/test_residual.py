"""Completing factors: what is added is the best there is, and the residuals are what they claim."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gacprof.factors import residual
from gacprof.factors.cut import Stored
from gacprof.factors.residual import complete


def stored(matrix: np.ndarray) -> Stored:
    return Stored(matrix, "float64")


def cut_to(matrix: np.ndarray, rank: int) -> np.ndarray:
    p, s, q = np.linalg.svd(matrix, full_matrices=False)
    return (p[:, :rank] * s[:rank]) @ q[:rank]


@given(st.integers(1, 14), st.integers(1, 14), st.integers(1, 6), st.integers(1, 9), st.data())
@settings(max_examples=80)
def test_what_is_added_is_the_best_part_of_the_residual(out, into, rank, more, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    weight = rng.standard_normal((out, into))
    u, v = rng.standard_normal((out, rank)) / 9, rng.standard_normal((rank, into)) / 9
    found = complete(stored(weight), stored(u), stored(v), more)
    left_over = weight - u @ v
    best = cut_to(left_over, more)
    scale = np.linalg.norm(weight)
    assert found.left.shape == (out, more) and found.right.shape == (more, into)
    np.testing.assert_allclose(found.left @ found.right, best, atol=1e-7 * scale)
    assert found.before == pytest.approx(np.linalg.norm(left_over) / scale)
    assert found.after == pytest.approx(np.linalg.norm(left_over - best) / scale, abs=1e-7)


@pytest.mark.parametrize("shape", [(40, 25), (25, 40)])
def test_blocks_and_single_precision_change_nothing_that_matters(shape, monkeypatch):
    rng = np.random.default_rng(3)
    weight = rng.standard_normal(shape)
    u, v = rng.standard_normal((shape[0], 4)), rng.standard_normal((4, shape[1]))
    whole = complete(stored(weight), stored(u), stored(v), 5)
    monkeypatch.setattr(residual, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(residual, "DOUBLE_UP_TO", 10)
    small = complete(stored(weight), stored(u), stored(v), 5)
    np.testing.assert_allclose(small.left @ small.right, whole.left @ whole.right, atol=1e-4)
    assert small.after == pytest.approx(whole.after, rel=1e-5)


def test_factors_that_are_the_weight_already_get_zeros():
    u, v = np.arange(6.0).reshape(3, 2), np.arange(8.0).reshape(2, 4)
    found = complete(stored(u @ v), stored(u), stored(v), 2)
    assert found.before == found.after == 0
    assert not (found.left @ found.right).any()
