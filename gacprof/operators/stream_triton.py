"""The Triton kernels of :mod:`gacprof.operators.stream`. Importing this imports Triton.

One program a row. ``K`` is both the row's length and the stride between rows; it is a
runtime argument, so that Triton specialises on its divisibility as it does in real kernels,
unless that is switched off. The same body is compiled twice, with and without.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import triton
import triton.language as tl

if TYPE_CHECKING:
    import torch

BLOCK = 1024
"""Elements a program handles at once: four 16-byte loads of a 16-bit type for each of 128
threads and half of that for 32-bit types, so that load width, not occupancy, is what varies."""


def gacprof_row_sum(source, sums, K, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, K, BLOCK):
        column = start + tl.arange(0, BLOCK)
        values = tl.load(source + row * K + column, mask=column < K, other=0.0)
        total += values.to(tl.float32)
    tl.store(sums + row, tl.sum(total, axis=0))


def gacprof_row_copy(source, target, K, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    for start in range(0, K, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < K
        values = tl.load(source + row * K + column, mask=inside, other=0.0)
        tl.store(target + row * K + column, values, mask=inside)


def _both(kernel: Callable[..., None]) -> dict[bool, Any]:
    """By whether K may be specialised on."""
    return {True: triton.jit(kernel), False: triton.jit(kernel, do_not_specialize=["K"])}


_SUM, _COPY = _both(gacprof_row_sum), _both(gacprof_row_copy)


def summer(specialise: bool) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """(matrix[rows, K], float32 sums[rows]) → sums."""
    return _launching(_SUM[specialise])


def copier(specialise: bool) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """(matrix[rows, K], its like) → the copy."""
    return _launching(_COPY[specialise])


def _launching(kernel: Any) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    def call(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        rows, K = source.shape
        kernel[(rows,)](source, target, K, BLOCK=BLOCK)
        return target

    return call
