"""The Triton kernels of :mod:`gacprof.operators.stream`, one program a row of length ``K``."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl

# Elements that a program handles at once: four 16-byte loads of a 16-bit type for each of 128
# threads, so that load width, not occupancy, is what varies.
BLOCK = 1024


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
def launcher(name: str, specialise: bool) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return the call (matrix[rows, K], result) → result, compiled with or without K's mark."""
    # K is a runtime argument: Triton specialises on its divisibility, as in real kernels.
    kernel: Any = triton.jit(KERNELS[name], do_not_specialize=[] if specialise else ["K"])

    def call(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        rows, K = source.shape
        kernel[(rows,)](source, target, K, BLOCK=BLOCK)
        return target

    return call
