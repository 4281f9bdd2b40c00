"""Cuts and completions are the best there are, and their losses are what they claim."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gacprof.core import factors
from gacprof.core.factors import Stored, by_magnitude, complete, loss_of_tail, redistribute


def stored(matrix: np.ndarray) -> Stored:
    return Stored(matrix, "float64")


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 9), st.data())
def test_no_rank_k_matrix_is_nearer_to_the_product(out, into, rank, data):
    keep = data.draw(st.integers(1, rank))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    u, v = rng.standard_normal((out, rank)), rng.standard_normal((rank, into))
    new = redistribute(stored(u), stored(v), keep)
    product = u @ v
    best = np.linalg.svd(product, compute_uv=False)
    best_error = np.sqrt((best[keep:] ** 2).sum())
    ours = (u @ new.left) @ (new.right @ v)
    scale = np.linalg.norm(product)
    assert np.linalg.norm(product - ours) <= best_error + 1e-9 * scale
    assert new.loss == pytest.approx(best_error / scale, abs=1e-9)


def test_both_new_factors_carry_the_same_share_of_the_singular_values():
    rng = np.random.default_rng(3)
    u, v = 100 * rng.standard_normal((40, 9)), 0.01 * rng.standard_normal((9, 30))
    new = redistribute(stored(u), stored(v), 4)
    np.testing.assert_allclose(
        np.linalg.norm(u @ new.left, axis=0), np.linalg.norm(new.right @ v, axis=1)
    )


def test_a_rank_deficient_pair_gives_finite_factors():
    u = np.outer(np.arange(5.0), np.ones(3))
    new = redistribute(stored(u), stored(np.ones((3, 4))), 2)
    assert np.isfinite(new.left).all() and np.isfinite(new.right).all()
    np.testing.assert_allclose(u @ new.left @ new.right @ np.ones((3, 4)), u @ np.ones((3, 4)))


def test_blocks_do_not_change_the_result(monkeypatch):
    rng = np.random.default_rng(4)
    u, v = rng.standard_normal((50, 6)), rng.standard_normal((6, 31))
    whole = redistribute(stored(u), stored(v), 3)
    monkeypatch.setattr(factors, "BLOCK_BYTES", 5 * 6 * 8)
    blocks = redistribute(stored(u), stored(v), 3)
    np.testing.assert_allclose(
        u @ whole.left @ whole.right @ v, u @ blocks.left @ blocks.right @ v, atol=1e-12
    )


def test_the_loss_of_a_tail_is_the_error_of_the_product():
    rng = np.random.default_rng(5)
    u, v = rng.standard_normal((20, 8)), rng.standard_normal((8, 15))
    error = np.linalg.norm(u[:, 5:] @ v[5:]) / np.linalg.norm(u @ v)
    assert loss_of_tail(stored(u), stored(v), 5) == pytest.approx(error)


def test_magnitude_is_the_product_of_the_norms_over_all_matrices():
    gate = np.diag([3.0, 1.0, 2.0, 5.0])
    down = np.diag([1.0, 9.0, 2.0, 0.1])
    kept = by_magnitude([(stored(gate), 0), (stored(down), 1)], 2)
    assert kept.indices == (1, 2)  # products 3, 9, 4, 0.5
    assert kept.loss == pytest.approx(3.5 / 16.5)


def cut_to(matrix: np.ndarray, rank: int) -> np.ndarray:
    p, s, q = np.linalg.svd(matrix, full_matrices=False)
    return (p[:, :rank] * s[:rank]) @ q[:rank]


@given(st.integers(1, 14), st.integers(1, 14), st.integers(1, 6), st.integers(1, 9), st.data())
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
    monkeypatch.setattr(factors, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(factors, "DOUBLE_UP_TO", 10)
    small = complete(stored(weight), stored(u), stored(v), 5)
    np.testing.assert_allclose(small.left @ small.right, whole.left @ whole.right, atol=1e-4)
    assert small.after == pytest.approx(whole.after, rel=1e-5)


def test_factors_that_are_the_weight_already_get_zeros():
    u, v = np.arange(6.0).reshape(3, 2), np.arange(8.0).reshape(2, 4)
    found = complete(stored(u @ v), stored(u), stored(v), 2)
    assert found.before == found.after == 0
    assert not (found.left @ found.right).any()
