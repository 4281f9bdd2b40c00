"""The best factors of a weight for the inputs it sees: the SVD of W·S, cut, and S taken out again;
and what a cut adds to the model's loss.

S says which inputs matter. With S = I this is plain SVD. With S·Sᵀ = Σ x·xᵀ (its Cholesky factor)
the error ‖(W − u·v)·S‖ is that of the layer's output over all x, and is √Σσ² of the singular values
cut (SVD-LLM, arXiv 2403.07378, theorem 3.2). With a diagonal S it is ASVD (arXiv 2312.05821).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gacprof.core.errors import CompressionError

if TYPE_CHECKING:
    import torch

RIDGES = (0.0, 1e-10, 1e-8, 1e-6, 1e-4)
"""Shares of the mean diagonal that are added to moments until they have a Cholesky factor. Fewer
tokens than features, or a feature that is always zero, leave them singular."""


@dataclass(frozen=True)
class Decomposition:
    """``u`` [out, k] and ``v`` [k, in], √Σ in each, most important entries first; their first r
    are the best factors of rank r. ``sigma`` [k] are the singular values of W·S or Rᵀ·W·S;
    k = min(out, in)."""

    u: torch.Tensor
    v: torch.Tensor
    sigma: torch.Tensor


def cholesky(moments: torch.Tensor) -> torch.Tensor:
    """The lower factor L of ``moments`` [in, in] = L·Lᵀ, of the nearest that has one.

    Raises :class:`CompressionError` for moments that are not finite.
    """
    import torch

    scale = moments.diagonal().mean()
    if not torch.isfinite(moments).all():
        raise CompressionError("the moments of its inputs are not finite")
    if scale <= 0:  # the layer never sees anything but zeros: all of its weights are alike
        return torch.eye(len(moments), dtype=moments.dtype, device=moments.device)
    for ridge in RIDGES:
        shifted = moments.clone()
        shifted.diagonal().add_(ridge * scale)
        factor, failed = torch.linalg.cholesky_ex(shifted)
        if not failed and bool((factor.diagonal() > 0).all()):
            return factor
    raise CompressionError("the moments of its inputs are not positive")


def decompose(
    weight: torch.Tensor, scaling: torch.Tensor | None, left: torch.Tensor | None = None
) -> Decomposition:
    """The factors of ``weight`` [out, in], in its own dtype.

    ``scaling`` is S: None for I, a vector [in] for a diagonal, or a lower triangle [in, in].
    ``left`` is R, a lower triangle [out, out]: the SVD is then of Rᵀ·W·S. Only the Gram matrix of
    the smaller side is decomposed: in float64 that tells singular values down to 1e-8 of the
    largest.
    """
    import torch

    turned = weight if left is None else left.T @ weight
    scaled = _times(turned, scaling)
    is_tall = len(scaled) > scaled.shape[1]
    gram = scaled.T @ scaled if is_tall else scaled @ scaled.T
    squares, vectors = torch.linalg.eigh(gram)
    sigma = squares.flip(0).clamp(min=0).sqrt()
    basis = vectors.flip(1)
    root = sigma.sqrt()
    inverse = torch.where(sigma > 1e-8 * sigma[0], 1 / root, torch.zeros_like(root))
    if is_tall:  # Rᵀ·W·S = (Rᵀ·W·S·V)·Vᵀ
        u, v = (scaled @ basis) * inverse, root[:, None] * _without(basis.T, scaling)
    else:
        u, v = basis * root, inverse[:, None] * (basis.T @ turned)
    if left is not None:
        u = torch.linalg.solve_triangular(left.T, u, upper=True)
    return Decomposition(u, v, sigma)


def loss_of_cuts(
    made: Decomposition, moments: torch.Tensor, curvature: torch.Tensor
) -> torch.Tensor:
    """What cutting the factors to each rank adds to the loss, by its second order: [k + 1] for the
    ranks 0 … k, in the unit of ``moments`` Σ x·xᵀ [in, in] times ``curvature``.

    ``curvature`` G [out, out] is the covariance of the gradients by the outputs, one number c for
    c·I. With G in place of the Hessian by the outputs, as in K-FAC (arXiv 1503.05671), a change ΔW
    adds tr(G·ΔW·(Σ x·xᵀ)·ΔWᵀ), up to a factor of all weights. Cut is ΔW = Σ uᵢ·vᵢ, so that this is
    the sum of (Uᵀ·G·U) ∘ (V·(Σ x·xᵀ)·Vᵀ) over the entries that are cut; where V is whitened the
    second is diag(σ) and each entry adds σᵢ²·(uᵢᵀ·G·uᵢ) for uᵢ of length 1.
    """
    return loss_of_tails(bent(made.u, curvature), made.v @ moments @ made.v.T)


def bent(columns: torch.Tensor, curvature: torch.Tensor) -> torch.Tensor:
    """Cᵀ·G·C of the ``columns`` C [out, k]; ``curvature`` may be one number c for c·I."""
    if not curvature.dim():
        return curvature * (columns.T @ columns)
    return columns.T @ curvature @ columns


def loss_of_tails(slopes: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """[k + 1]: the sum of ``slopes`` ∘ ``inputs`` [k, k], both symmetric, over the entries from 0
    on, 1 on … and none."""
    import torch

    both = slopes * inputs
    own = both.diagonal() + 2 * both.triu(1).sum(1)  # of an entry with all behind it
    lost = own.flip(0).cumsum(0).flip(0).clamp(min=0)
    return torch.cat([lost, lost.new_zeros(1)])


def _times(weight: torch.Tensor, scaling: torch.Tensor | None) -> torch.Tensor:
    if scaling is None:
        return weight
    return weight * scaling if scaling.dim() == 1 else weight @ scaling


def _without(rows: torch.Tensor, scaling: torch.Tensor | None) -> torch.Tensor:
    """``rows``·S⁻¹."""
    import torch

    if scaling is None:
        return rows
    if scaling.dim() == 1:
        return rows / scaling
    return torch.linalg.solve_triangular(scaling, rows, upper=False, left=False)
