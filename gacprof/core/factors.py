"""Arithmetic on stored factors: which entries of a dim to give up or to add, and what that loses.

Three ways to cut, by what is known:

``order``      the factors keep their entries most important first: drop the trailing ones;
``svd``        a factor pair without an order: the SVD of the product, from QR of both factors
               and the SVD of the small r×r core, gives the best cut (Eckart–Young);
``magnitude``  a width without stored importance: keep the entries with the largest product of
               norms over the matrices that they take part in. A stand-in: it knows no data.

The best addition of k entries to u·v is the residual W − u·v cut to rank k: plain SVD, as if all
inputs were alike. A compressor that weighted its inputs (whitening, activation scales) would
choose other entries; these bring the product nearest to W.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gacprof.core.dtypes import element_type
from gacprof.core.errors import CheckpointError

Matrix = NDArray[np.float64]
Method = Literal["order", "svd", "magnitude"]

COMPUTABLE = ("float64", "float32", "float16", "bfloat16")
"""Types whose values we combine; others can be copied and padded only."""

BLOCK_BYTES = 16 << 20
TINY = 1e-14
"""Singular values below this share of the largest are noise of float64 (its epsilon is 2e-16)."""

DOUBLE_UP_TO = 3072
"""Larger weights are worked on in float32, which is faster and blurs directions whose singular
values are below √2⁻²³ ≈ 3e-4 of the largest: less than float16 or bfloat16 resolve. Measured for
4096×4096: 0.8 GB at most, nearly all of it in the eigensolver."""


def widen(stored: NDArray[Any], dtype: str) -> NDArray[np.float64]:
    """Values of elements stored as ``dtype`` (torch's name), exactly, in float64."""
    _check(dtype)
    if dtype == "bfloat16":
        bits = stored.view(np.uint16).astype(np.uint32) << np.uint32(16)
        return bits.view(np.float32).astype(np.float64)
    return stored.astype(np.float64)


def narrow(values: NDArray[np.float64], dtype: str) -> NDArray[Any]:
    """Values rounded to ``dtype``, to nearest, ties to even, in the type's carrier.

    bfloat16 is reached through float32 (one extra rounding, at most 2⁻¹⁶ of an ulp more).
    Raises :class:`CheckpointError` where a finite value overflows the type.
    """
    _check(dtype)
    with np.errstate(over="ignore"):
        is_bfloat = dtype == "bfloat16"
        narrowed = _to_bfloat16(values) if is_bfloat else values.astype(element_type(dtype).numpy)
    finite = np.isfinite(widen(narrowed, dtype))
    if not finite.all() and np.isfinite(values[~finite]).any():
        raise CheckpointError(f"a computed factor does not fit {dtype}: it overflows")
    return narrowed


def all_finite(stored: NDArray[Any], dtype: str) -> bool:
    """Whether none of the elements is NaN or infinite; true for types that we do not compute."""
    if dtype == "bfloat16":
        exponent = np.uint16(0x7F80)
        return not bool(((stored.view(np.uint16) & exponent) == exponent).any())
    return dtype not in COMPUTABLE or bool(np.isfinite(stored).all())


def _to_bfloat16(values: NDArray[np.float64]) -> NDArray[np.uint16]:
    single = values.astype(np.float32)
    bits = np.ascontiguousarray(single).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet_nan = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(single), quiet_nan, rounded).astype(np.uint16)


def _check(dtype: str) -> None:
    if dtype not in COMPUTABLE:
        raise CheckpointError(
            f"values stored as {dtype} cannot be combined; only padding and copying keep them exact"
        )


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
            yield widen(np.ascontiguousarray(values[start : start + step]), self.dtype)


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
    whole = float(np.square(s).sum())
    loss = float(np.sqrt(np.square(s[keep:]).sum() / whole)) if whole > 0 else 0.0
    return Redistribution(left, right, loss)


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
    second = widen(b.values, b.dtype).astype(numbers, copy=False)
    second = second if is_tall else second.T
    step = max(1, BLOCK_BYTES // (8 * w.shape[1]))
    for start in range(0, w.shape[0], step):
        rows = slice(start, start + step)
        original = widen(np.ascontiguousarray(w[rows]), weight.dtype)
        factor = widen(np.ascontiguousarray(first[rows]), a.dtype)
        kept = factor.astype(numbers, copy=False) @ second
        yield original.astype(numbers, copy=False) - kept, float(np.square(original).sum())


def _numbers(side: int) -> type[np.floating[Any]]:
    return np.float64 if side <= DOUBLE_UP_TO else np.float32
