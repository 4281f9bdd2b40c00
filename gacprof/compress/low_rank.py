"""The best factors of a weight for the inputs it sees, and the cost of each rank.

The SVD of Rᵀ·W·S is cut, and R and S are taken out again: S weighs the inputs, R the outputs. With
g = ∂loss/∂output, a change ΔW of a weight adds tr(G·ΔW·A·ΔWᵀ)/2 nats a token to the loss, by its
second order and with K-FAC's factors A = mean x·xᵀ and G = mean g·gᵀ (arXiv 1503.05671). So a
singular value that kfac-svd cuts is the loss itself, one that svd-llm cuts an error of the output.
"""

from dataclasses import dataclass
from typing import Literal

import torch

from gacprof.compress.statistics import Covariance
from gacprof.core.errors import CheckpointError

LowRank = Literal["svd", "asvd", "svd-llm", "kfac-svd"]
"""Plain SVD, ASVD (arXiv 2312.05821), SVD-LLM (2403.07378), K-FAC's curvature (2505.17974)."""

# shares of the mean diagonal that are added to a covariance until it has a Cholesky factor: fewer
# tokens than features, or a feature that is always zero, leave it singular
RIDGES = (0.0, 1e-10, 1e-8, 1e-6, 1e-4)
# for gradients, at least: the inverse of R would magnify the rounding of sums in float32
GRADIENT_RIDGE = 1e-6
ALPHA = 0.5  # the exponent of ASVD's scaling, as published
# added to ASVD's scaling, so that a feature that is always zero can be divided by
LEAST_SCALE = 1e-6
# singular values below this share of the largest are rounding: the Gram matrix squares them
LEAST_SIGMA = 1e-8


@dataclass(frozen=True)
class Factors:
    """The factors ``u`` [out, k] and ``v`` [k, in] of a weight, √σ in each, most important entries
    first: their first r are the best of rank r. ``sigma`` [k] are singular values of Rᵀ·W·S."""

    u: torch.Tensor
    v: torch.Tensor
    sigma: torch.Tensor


def factor_weight(
    method: LowRank,
    weight: torch.Tensor,
    inputs: Covariance | None = None,
    gradients: Covariance | None = None,
) -> Factors:
    """Decompose a weight [out, in] as a method does, from the statistics that it needs."""
    right = None
    left = None
    if method == "asvd":
        assert inputs is not None
        right = torch.diag((inputs.absolute / inputs.count) ** ALPHA + LEAST_SCALE)
    elif method != "svd":
        assert inputs is not None
        right = cholesky(inputs.mean)
    if method == "kfac-svd":
        assert gradients is not None
        left = cholesky(gradients.mean, GRADIENT_RIDGE)
    return decompose(weight.double(), right, left)


def decompose(
    weight: torch.Tensor, right: torch.Tensor | None = None, left: torch.Tensor | None = None
) -> Factors:
    """Cut the SVD of Rᵀ·W·S into factors of W [out, in], in its dtype.

    ``right`` is S [in, in] and ``left`` R [out, out], lower triangles; None stands for I.
    """
    turned = weight if left is None else left.T @ weight
    scaled = turned if right is None else turned @ right
    # eigh of the smaller side's Gram matrix is many times faster than an SVD of the weight
    is_tall = scaled.shape[0] > scaled.shape[1]
    gram = scaled.T @ scaled if is_tall else scaled @ scaled.T
    squares, vectors = torch.linalg.eigh(gram)
    sigma = squares.flip(0).clamp(min=0).sqrt()
    basis = vectors.flip(1)
    root = sigma.sqrt()
    # dividing by what is rounding alone would fill its column with noise
    inverse = torch.where(sigma > LEAST_SIGMA * sigma[0], 1 / root, 0.0)
    if is_tall:  # Rᵀ·W·S = (Rᵀ·W·S·V)·Vᵀ
        u = (scaled @ basis) * inverse
        v = root[:, None] * basis.T
        if right is not None:
            v = torch.linalg.solve_triangular(right, v, upper=False, left=False)
    else:  # Rᵀ·W·S = U·(Uᵀ·Rᵀ·W·S): without S on the right S need not be taken out
        u = basis * root
        v = inverse[:, None] * (basis.T @ turned)
    if left is not None:
        u = torch.linalg.solve_triangular(left.T, u, upper=True)
    return Factors(u, v, sigma)


def cholesky(covariance: torch.Tensor, ridge: float = 0.0) -> torch.Tensor:
    """Return the lower factor L of a covariance L·Lᵀ, with a share of :data:`RIDGES` added."""
    scale = covariance.diagonal().mean()
    if scale == 0:  # only zeros were seen: all directions count the same
        return torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
    for share in RIDGES:
        if share >= ridge:
            shifted = covariance.clone()
            shifted.diagonal().add_(share * scale)
            factor, failed = torch.linalg.cholesky_ex(shifted)
            if not failed:
                return factor
    raise CheckpointError("activations on the calibration text are not finite: the model overflows")


def loss_by_rank(factors: Factors, inputs: torch.Tensor, gradients: torch.Tensor) -> torch.Tensor:
    """Return tr(G·ΔW·A·ΔWᵀ) for the ranks 0 … k [k + 1]: twice the loss added, in nats a token.

    ``inputs`` is A = mean x·xᵀ [in, in], ``gradients`` G = mean g·gᵀ [out, out].
    """
    # ΔW = Σ uᵢ·vᵢ over the entries cut, so the trace is the sum of (uᵀ·G·u) ∘ (v·A·vᵀ) over pairs
    both = (factors.u.T @ gradients @ factors.u) * (factors.v @ inputs @ factors.v.T)
    # an entry is cut together with all later ones: its pairs with them count both ways
    with_later = both.diagonal() + 2 * both.triu(1).sum(1)
    return tails(with_later)


def energy_by_rank(sigma: torch.Tensor) -> torch.Tensor:
    """Return the share of Σσ² that the ranks 0 … k cut [k + 1]."""
    energy = tails(sigma.square())
    return energy / energy[0].clamp(min=1e-300)  # a weight of zeros has no energy to share


def tails(values: torch.Tensor) -> torch.Tensor:
    """Return the sums of the values from 0 on, 1 on, …, and of none."""
    sums = values.flip(0).cumsum(0).flip(0).clamp(min=0)
    return torch.cat([sums, sums.new_zeros(1)])
