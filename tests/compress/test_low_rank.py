"""Factors are those of a brute-force SVD in the method's metric; losses are traces."""

from typing import get_args

import pytest
import torch

from gacprof.compress.low_rank import LowRank, energy_by_rank, factor_weight, loss_by_rank
from gacprof.compress.statistics import Covariance

METHODS = get_args(LowRank)
SHAPES = [(24, 40), (40, 24), (32, 32)]


def sampled(size, rows, seed):
    """A covariance of random vectors whose directions differ in scale."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, size, generator=generator, dtype=torch.float64)
    mixing = torch.randn(size, size, generator=generator, dtype=torch.float64)
    covariance = Covariance(size, torch.device("cpu"))
    covariance.add(x @ mixing)
    return covariance


def problem(shape, rows=500):
    generator = torch.Generator().manual_seed(7)
    weight = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return weight, sampled(shape[1], rows, 2), sampled(shape[0], rows, 3)


def root(matrix):
    """The symmetric root: another one than the Cholesky factor, for the same metric."""
    values, vectors = torch.linalg.eigh(matrix)
    return vectors @ torch.diag(values.clamp(min=0).sqrt()) @ vectors.T


def metric(method, inputs, gradients):
    """(left, right) symmetric weights of the outputs and inputs."""
    right = torch.eye(len(inputs.absolute), dtype=torch.float64)
    left = torch.eye(len(gradients.absolute), dtype=torch.float64)
    if method == "asvd":
        right = torch.diag((inputs.absolute / inputs.count).sqrt())
    elif method != "svd":
        right = root(inputs.mean)
    if method == "kfac-svd":
        left = root(gradients.mean)
    return left, right


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("method", METHODS)
def test_factors_are_the_best_of_their_rank_in_the_methods_metric(method, shape):
    weight, inputs, gradients = problem(shape)
    left, right = metric(method, inputs, gradients)
    u, s, v = torch.linalg.svd(left @ weight @ right, full_matrices=False)
    factors = factor_weight(method, weight, inputs, gradients)
    torch.testing.assert_close(factors.sigma, s, rtol=1e-5, atol=1e-5 * float(s[0]))
    for rank in (1, 5, min(shape)):
        best = (u[:, :rank] * s[:rank]) @ v[:rank]
        product = left @ factors.u[:, :rank] @ factors.v[:rank] @ right
        torch.testing.assert_close(product, best, rtol=1e-4, atol=1e-4 * float(s[0]))


@pytest.mark.parametrize("method", METHODS)
def test_the_loss_of_a_rank_is_the_second_order_term(method):
    weight, inputs, gradients = problem((24, 40))
    factors = factor_weight(method, weight, inputs, gradients)
    losses = loss_by_rank(factors, inputs.mean, gradients.mean)
    assert len(losses) == 25
    for rank in range(25):
        change = weight - factors.u[:, :rank] @ factors.v[:rank]
        trace = torch.trace(gradients.mean @ change @ inputs.mean @ change.T)
        torch.testing.assert_close(losses[rank], trace, rtol=1e-6, atol=1e-6 * float(losses[0]))


def test_cut_singular_values_are_the_loss_where_both_sides_are_whitened():
    weight, inputs, gradients = problem((24, 40))
    factors = factor_weight("kfac-svd", weight, inputs, gradients)
    losses = loss_by_rank(factors, inputs.mean, gradients.mean)
    tails = [float(factors.sigma[rank:].square().sum()) for rank in range(25)]
    torch.testing.assert_close(losses.tolist(), tails, rtol=1e-4, atol=1e-4 * tails[0])


def test_with_whitened_inputs_a_value_costs_its_square_times_its_direction():
    """loss(r) = Σ over j > r of σⱼ² · uⱼᵀ·G·uⱼ."""
    weight, inputs, gradients = problem((24, 40))
    factors = factor_weight("svd-llm", weight, inputs)
    unit = factors.u / factors.u.norm(dim=0)
    added = factors.sigma.square() * (unit * (gradients.mean @ unit)).sum(0)
    tails = [float(added[rank:].sum()) for rank in range(25)]
    losses = loss_by_rank(factors, inputs.mean, gradients.mean)
    torch.testing.assert_close(losses.tolist(), tails, rtol=1e-6, atol=1e-9 * tails[0])


def test_fewer_tokens_than_features_are_enough():
    weight, inputs, gradients = problem((24, 40), rows=8)
    factors = factor_weight("kfac-svd", weight, inputs, gradients)
    change = weight - factors.u @ factors.v
    error = torch.trace(change @ inputs.mean @ change.T)
    assert error < 1e-6 * torch.trace(weight @ inputs.mean @ weight.T)


def test_inputs_that_are_always_zero_count_the_same():
    weight = problem((24, 40))[0]
    zeros = Covariance(40, torch.device("cpu"))
    zeros.add(torch.zeros(5, 40, dtype=torch.float64))
    factors = factor_weight("svd-llm", weight, zeros)
    torch.testing.assert_close(factors.sigma, torch.linalg.svdvals(weight), rtol=1e-6, atol=1e-6)


def test_energy_falls_from_one_to_zero():
    shares = energy_by_rank(torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64))
    torch.testing.assert_close(shares.tolist(), [1.0, 5 / 14, 1 / 14, 0.0])
