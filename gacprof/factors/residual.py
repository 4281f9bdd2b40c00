"""What a factor pair leaves out of the weight that it stands for, and the best entries to add.

With R = W − u·v, the best addition of k entries is R cut to rank k (Eckart–Young): plain SVD,
as if all inputs were alike. A compressor that weighted its inputs (whitening, activation
scales) would choose other entries; these bring the product nearest to W.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from gacprof.factors import elements
from gacprof.factors.cut import BLOCK_BYTES, TINY, Matrix, Stored

DOUBLE_UP_TO = 3072
"""Larger weights are worked on in float32, which is faster and blurs directions whose singular
values are below √2⁻²³ ≈ 3e-4 of the largest: less than float16 or bfloat16 resolve. Measured for
4096×4096: 0.8 GB at most, nearly all of it in the eigensolver."""


@dataclass(frozen=True, eq=False)
class Completion:
    """``left`` [out, k] and ``right`` [k, in] to put beside u and v, strongest entries first.

    ``before`` and ``after`` are ‖W − u·v‖ / ‖W‖ without and with them.
    """

    left: Matrix
    right: Matrix
    before: float
    after: float


def complete(weight: Stored, u: Stored, v: Stored, more: int) -> Completion:
    """The best ``more`` entries to add to u [out, r] · v [r, in] to come near W [out, in].

    The eigenvectors of the smaller Gram matrix of R span its best subspace; R is read twice, a
    few megabytes at a time, and never held.
    """
    n_out, n_in = weight.values.shape
    basis, left_over, whole = _leading(weight, u, v, min(more, n_out, n_in))
    tall = np.concatenate([block @ basis for block, _ in _residual(weight, u, v)])
    strength = np.sqrt(np.square(tall).sum(axis=0, dtype=np.float64))
    root = np.sqrt(np.where(strength > TINY * np.sqrt(whole), strength, 0.0))
    share = np.where(root > 0, tall / np.where(root > 0, root, 1.0), 0.0)
    left, right = (share, (basis * root).T) if n_out >= n_in else (basis * root, share.T)
    found = float(np.square(strength).sum())
    blank = more - basis.shape[1]  # a rank beyond the weight's own has nothing to hold
    return Completion(
        np.pad(left, ((0, 0), (0, blank))),
        np.pad(right, ((0, blank), (0, 0))),
        float(np.sqrt(left_over / whole)) if whole else 0.0,
        float(np.sqrt(max(left_over - found, 0.0) / whole)) if whole else 0.0,
    )


def _leading(weight: Stored, u: Stored, v: Stored, count: int) -> tuple[Matrix, float, float]:
    """An orthonormal basis of R's best ``count`` directions, ‖R‖² and ‖W‖²."""
    side = min(weight.values.shape)
    gram, whole = np.zeros((side, side), _numbers(side)), 0.0
    for block, size in _residual(weight, u, v):
        gram += block.T @ block
        whole += size
    _, vectors = np.linalg.eigh(gram)
    return vectors[:, ::-1][:, :count].copy(), float(np.trace(gram, dtype=np.float64)), whole


def _residual(weight: Stored, u: Stored, v: Stored) -> Iterator[tuple[Matrix, float]]:
    """Blocks of R, or of Rᵀ where that is the taller one, with ‖·‖² of the same block of W."""
    is_tall = weight.values.shape[0] >= weight.values.shape[1]
    w = weight.values if is_tall else weight.values.T
    a, b = (u, v) if is_tall else (v, u)
    first = a.values if is_tall else a.values.T
    numbers = _numbers(w.shape[1])
    second = elements.widen(b.values, b.dtype).astype(numbers, copy=False)
    second = second if is_tall else second.T
    step = max(1, BLOCK_BYTES // (8 * w.shape[1]))
    for start in range(0, w.shape[0], step):
        rows = slice(start, start + step)
        original = elements.widen(np.ascontiguousarray(w[rows]), weight.dtype)
        factor = elements.widen(np.ascontiguousarray(first[rows]), a.dtype)
        kept = factor.astype(numbers, copy=False) @ second
        yield original.astype(numbers, copy=False) - kept, float(np.square(original).sum())


def _numbers(side: int) -> type[np.floating[Any]]:
    return np.float64 if side <= DOUBLE_UP_TO else np.float32
