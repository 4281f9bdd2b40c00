"""The Triton kernels of :mod:`gacprof.operators.stream`. Importing this imports Triton.

One program a row. ``K`` is both the row's length and the stride between rows; it is a
runtime argument, so that Triton specialises on its divisibility as it does in real kernels,
unless that is switched off. The same body is compiled twice, with and without.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
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


KERNELS = {"row_sum": gacprof_row_sum, "row_copy": gacprof_row_copy}


@cache
def launching(name: str, specialise: bool) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """(matrix[rows, K], float32 sums[rows]) → sums, or (matrix, its like) → the copy."""
    kernel: Any = triton.jit(KERNELS[name], do_not_specialize=None if specialise else ["K"])

    def call(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        rows, K = source.shape
        kernel[(rows,)](source, target, K, BLOCK=BLOCK)
        return target

    return call
