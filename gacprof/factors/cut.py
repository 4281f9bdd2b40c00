"""Which entries of a dim to give up, and what that loses.

Three ways, by what is known:

``order``      the factors keep their entries most important first: drop the trailing ones;
``svd``        a factor pair without an order: the SVD of the product, from QR of both factors
               and the SVD of the small r×r core, gives the best cut (Eckart–Young);
``magnitude``  a width without stored importance: keep the entries with the largest product of
               norms over the matrices that they take part in. A stand-in: it knows no data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gacprof.factors import elements

Matrix = NDArray[np.float64]
Method = Literal["order", "svd", "magnitude"]

BLOCK_BYTES = 16 << 20
TINY = 1e-14
"""Singular values below this share of the largest are noise of float64 (its epsilon is 2e-16)."""


@dataclass(frozen=True, eq=False)
class Stored:
    """A matrix as it is stored: ``values`` [rows, columns] in the carrier of ``dtype``."""

    values: NDArray[Any]
    dtype: str

    def blocks(self, axis: int) -> Iterator[Matrix]:
        """Blocks of the matrix in float64, laid out [entries along the other axis, ``axis``]."""
        values = self.values if axis == 1 else self.values.T
        step = max(1, BLOCK_BYTES // (8 * max(1, values.shape[1])))
        for start in range(0, values.shape[0], step):
            yield elements.widen(np.ascontiguousarray(values[start : start + step]), self.dtype)


@dataclass(frozen=True, eq=False)
class Redistribution:
    """``u·left`` and ``right·v`` are the best factors of the smaller rank.

    ``left`` is [old, new], ``right`` is [new, old]; ``loss`` is the relative Frobenius error of
    the product.
    """

    left: Matrix
    right: Matrix
    loss: float


@dataclass(frozen=True)
class Kept:
    """The entries to keep, ascending; ``loss`` is the share of the magnitude given up."""

    indices: tuple[int, ...]
    loss: float


def redistribute(u: Stored, v: Stored, keep: int) -> Redistribution:
    """The best rank-``keep`` factors of ``u·v`` for u [out, r] and v [r, in].

    With u = Q_u R_u and vᵀ = Q_v R_v the product is Q_u (R_u R_vᵀ) Q_vᵀ; from the core's SVD
    P S Qᵀ its best factors are u·(R_vᵀ Q S^-½) and (S^-½ Pᵀ R_u)·v. Nothing is inverted but
    the singular values that are kept, and the Q factors are never formed.
    """
    r_u, r_v = triangle(u, 1), triangle(v, 0)
    p, s, q_t = np.linalg.svd(r_u @ r_v.T)
    real = s[:keep] > TINY * max(float(s[0]), np.finfo(float).tiny)
    scale = np.where(real, 1 / np.sqrt(np.where(real, s[:keep], 1.0)), 0.0)
    left = (r_v.T @ q_t[:keep].T) * scale
    right = scale[:, None] * (p[:, :keep].T @ r_u)
    return Redistribution(left, right, _share(s[keep:] ** 2, s**2))


def triangle(matrix: Stored, axis: int) -> Matrix:
    """R of the QR of a tall matrix whose columns run along ``axis``, block by block.

    Stacking R on the next block and taking its R again never holds more than one block.
    Fewer rows than columns give a short R: it is filled with zeros to be square.
    """
    width = matrix.values.shape[axis]
    r: Matrix = np.zeros((0, width))
    for block in matrix.blocks(axis):
        r = np.asarray(np.linalg.qr(np.concatenate([r, block]), mode="r"), np.float64)
    return np.concatenate([r, np.zeros((width - r.shape[0], width))])


def loss_of_tail(u: Stored, v: Stored, keep: int) -> float:
    """Relative Frobenius error of u·v when its entries from ``keep`` on are dropped."""
    gram_u, gram_v = _gram(u, 1), _gram(v, 0)
    product = gram_u * gram_v
    whole, tail = float(product.sum()), float(product[keep:, keep:].sum())
    return float(np.sqrt(max(tail, 0.0) / whole)) if whole > 0 else 0.0


def by_magnitude(matrices: Sequence[tuple[Stored, int]], keep: int) -> Kept:
    """The ``keep`` entries with the largest product of norms along the given axes."""
    importance = np.prod([norms(matrix, axis) for matrix, axis in matrices], axis=0)
    strongest_first = np.argsort(-importance, kind="stable")
    kept, dropped = np.sort(strongest_first[:keep]), strongest_first[keep:]
    total = float(importance.sum())
    loss = float(importance[dropped].sum()) / total if total > 0 else 0.0
    return Kept(tuple(int(i) for i in kept), loss)


def norms(matrix: Stored, axis: int) -> Matrix:
    """Euclidean norms of the entries along ``axis``."""
    squares = np.zeros(matrix.values.shape[axis])
    for block in matrix.blocks(axis):
        squares += np.square(block).sum(axis=0)
    return np.sqrt(squares)


def _gram(matrix: Stored, axis: int) -> Matrix:
    gram = np.zeros((matrix.values.shape[axis],) * 2)
    for block in matrix.blocks(axis):
        gram += block.T @ block
    return gram


def _share(part: Matrix, whole: Matrix) -> float:
    total = float(whole.sum())
    return float(np.sqrt(part.sum() / total)) if total > 0 else 0.0
