"""The algebra of a cut: what is lost is exactly the singular values that are left out."""

import pytest
import torch

from gacprof.core.errors import CompressionError
from gacprof.extras.compress.methods.low_rank import cholesky, decompose, loss_of_cuts

SHAPES = [(40, 24), (24, 40), (32, 32)]


def inputs(width, count=200, seed=0):
    draw = torch.Generator().manual_seed(seed)
    scale = torch.logspace(0, 2, width, dtype=torch.float64)
    return torch.randn(count, width, generator=draw, dtype=torch.float64) * scale


def weight(shape, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def cut(made, rank):
    return made.u[:, :rank] @ made.v[:rank]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rank", [1, 7, 20])
def test_the_output_error_of_a_whitened_cut_is_the_singular_values_left_out(shape, rank):
    w, x = weight(shape), inputs(shape[1])
    made = decompose(w, cholesky(x.T @ x))
    error = torch.linalg.norm(x @ (w - cut(made, rank)).T)
    assert error == pytest.approx(float(made.sigma[rank:].square().sum().sqrt()), rel=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["none", "diagonal", "cholesky"])
def test_at_full_rank_the_weight_is_back(shape, kind):
    w, x = weight(shape), inputs(shape[1])
    scaling = {
        "none": None,
        "diagonal": x.abs().mean(0) ** 0.5,
        "cholesky": cholesky(x.T @ x),
    }[kind]
    made = decompose(w, scaling)
    assert torch.allclose(made.u @ made.v, w, rtol=1e-7, atol=1e-7)


def test_moments_of_too_few_tokens_or_of_a_dead_input_have_a_factor_all_the_same():
    x = inputs(24, count=10)
    x[:, 3] = 0
    w = weight((16, 24))
    made = decompose(w, cholesky(x.T @ x))
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
    made = decompose(w, cholesky(torch.zeros(5, 5, dtype=torch.float64)))
    assert torch.allclose(cut(made, 3), cut(decompose(w, None), 3))


def second_order(w, x, slopes):
    """tr(G·W·(Σ x·xᵀ)·Wᵀ), G the covariance of the gradients."""
    g = slopes.T @ slopes / len(slopes)
    return float(torch.trace(g @ w @ x.T @ x @ w.T))


KINDS = {
    "svd": lambda x, g: (None, None),
    "asvd": lambda x, g: (x.abs().mean(0) ** 0.5, None),
    "svd-llm": lambda x, g: (cholesky(x.T @ x), None),
    "kfac-svd": lambda x, g: (cholesky(x.T @ x), cholesky(g.T @ g / len(g))),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_what_cuts_add_to_the_loss_is_counted_whatever_the_factors(shape, kind):
    w, x, g = weight(shape), inputs(shape[1]), inputs(shape[0])
    made = decompose(w, *KINDS[kind](x, g))
    lost = loss_of_cuts(made, x.T @ x, g.T @ g / len(g))
    assert len(lost) == min(shape) + 1
    for rank in (0, 1, 7, min(shape) - 1):
        exact = second_order(w - cut(made, rank), x, g)
        assert float(lost[rank]) == pytest.approx(exact, rel=1e-6, abs=1e-6 * float(lost[0]))
    assert lost[-1] == 0


@pytest.mark.parametrize("shape", SHAPES)
def test_the_loss_by_the_mean_square_of_gradients_is_the_output_error(shape):
    w, x = weight(shape), inputs(shape[1])
    made = decompose(w, cholesky(x.T @ x))
    lost = loss_of_cuts(made, x.T @ x, torch.tensor(3.0, dtype=torch.float64))
    assert torch.allclose(lost[:-1], 3 * made.sigma.square().flip(0).cumsum(0).flip(0))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rank", [1, 5, 12])
def test_factors_of_both_sides_lose_the_least_of_all_factors_of_a_rank(shape, rank):
    w, x, g = weight(shape), inputs(shape[1]), inputs(shape[0], seed=9)
    made = {kind: decompose(w, *of(x, g)) for kind, of in KINDS.items()}
    lost = {kind: second_order(w - cut(m, rank), x, g) for kind, m in made.items()}
    assert lost["kfac-svd"] == pytest.approx(float(made["kfac-svd"].sigma[rank:].square().sum()))
    assert all(lost["kfac-svd"] < other for kind, other in lost.items() if kind != "kfac-svd")
