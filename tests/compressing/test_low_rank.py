"""The algebra of a cut: what is lost is exactly the singular values that are left out."""

import pytest
import torch

from gacprof.core.errors import CompressionError
from gacprof.extras.compress.methods.low_rank import cholesky, decompose

SHAPES = [(40, 24), (24, 40), (32, 32)]


def inputs(width, count=200, seed=0):
    draw = torch.Generator().manual_seed(seed)
    scale = torch.logspace(0, 2, width, dtype=torch.float64)
    return torch.randn(count, width, generator=draw, dtype=torch.float64) * scale


def weight(shape, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rank", [1, 7, 20])
def test_the_output_error_of_a_whitened_cut_is_the_singular_values_left_out(shape, rank):
    w, x = weight(shape), inputs(shape[1])
    made = decompose(w, cholesky(x.T @ x), rank)
    error = torch.linalg.norm(x @ (w - made.u @ made.v).T)
    assert error == pytest.approx(float(made.sigma[rank:].square().sum().sqrt()), rel=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_no_other_factors_of_the_rank_come_nearer_to_the_outputs(shape):
    w, x = weight(shape), inputs(shape[1])
    whitened = decompose(w, cholesky(x.T @ x), 9)
    for other in (decompose(w, None, 9), decompose(w, x.abs().mean(0) ** 0.5, 9)):
        ours, theirs = (torch.linalg.norm(x @ (w - m.u @ m.v).T) for m in (whitened, other))
        assert ours < theirs


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["none", "diagonal", "cholesky"])
def test_at_full_rank_the_weight_is_back(shape, kind):
    w, x = weight(shape), inputs(shape[1])
    scaling = {
        "none": None,
        "diagonal": x.abs().mean(0) ** 0.5,
        "cholesky": cholesky(x.T @ x),
    }[kind]
    made = decompose(w, scaling, min(shape))
    assert torch.allclose(made.u @ made.v, w, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_smaller_rank_is_the_beginning_of_a_larger_one(shape):
    w = weight(shape)
    small, large = decompose(w, None, 5), decompose(w, None, 20)
    assert torch.allclose(small.u @ small.v, large.u[:, :5] @ large.v[:5])


@pytest.mark.parametrize("shape", SHAPES)
def test_the_root_of_sigma_is_in_both_factors(shape):
    made = decompose(weight(shape), None, 8)
    assert torch.allclose(torch.linalg.norm(made.u, dim=0), made.sigma[:8].sqrt())
    assert torch.allclose(torch.linalg.norm(made.v, dim=1), made.sigma[:8].sqrt())


def test_moments_of_too_few_tokens_or_of_a_dead_input_have_a_factor_all_the_same():
    x = inputs(24, count=10)
    x[:, 3] = 0
    w = weight((16, 24))
    made = decompose(w, cholesky(x.T @ x), 16)
    assert torch.isfinite(made.u).all() and torch.isfinite(made.v).all()
    error = torch.linalg.norm(x @ (w - made.u @ made.v).T) / torch.linalg.norm(x @ w.T)
    assert error < 1e-5


def test_moments_that_are_not_finite_are_refused():
    moments = torch.eye(4, dtype=torch.float64)
    moments[1, 1] = float("nan")
    with pytest.raises(CompressionError, match="not finite"):
        cholesky(moments)


def test_a_layer_that_only_sees_zeros_is_cut_like_plain_svd():
    w = weight((6, 5))
    made = decompose(w, cholesky(torch.zeros(5, 5, dtype=torch.float64)), 3)
    plain = decompose(w, None, 3)
    assert torch.allclose(made.u @ made.v, plain.u @ plain.v)
