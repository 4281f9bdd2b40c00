"""The best factors of a weight for the inputs it sees: the SVD of W·S, cut, and S taken out again.

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
    are the best factors of rank r. ``sigma`` [min(out, in)] are all singular values of W·S."""

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


def decompose(weight: torch.Tensor, scaling: torch.Tensor | None, keep: int) -> Decomposition:
    """The first ``keep`` entries of the factors of ``weight`` [out, in], in its own dtype.

    ``scaling`` is S: None for I, a vector [in] for a diagonal, or a lower triangle [in, in]. Only
    the Gram matrix of the smaller side is decomposed: in float64 that tells singular values down
    to 1e-8 of the largest.
    """
    import torch

    scaled = _times(weight, scaling)
    is_tall = len(scaled) > scaled.shape[1]
    gram = scaled.T @ scaled if is_tall else scaled @ scaled.T
    squares, vectors = torch.linalg.eigh(gram)
    sigma = squares.flip(0).clamp(min=0).sqrt()
    basis = vectors.flip(1)[:, :keep]
    root = sigma[:keep].sqrt()
    inverse = torch.where(sigma[:keep] > 1e-8 * sigma[0], 1 / root, torch.zeros_like(root))
    if is_tall:  # W·S = (W·S·V)·Vᵀ
        return Decomposition(
            (scaled @ basis) * inverse, root[:, None] * _without(basis.T, scaling), sigma
        )
    return Decomposition(basis * root, inverse[:, None] * (basis.T @ weight), sigma)


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
