"""Triton kernels that are compiled, never run, to see what a compiler makes of a dimension.

The only module here that imports Triton; :mod:`static` imports it on demand. The row sum has
the shape of the one behind the published "L2" figure: few programs, 32 rows by 64 columns.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def gacprof_row_copy(source, target, stride, columns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    values = tl.load(source + row * stride + at, mask=inside)
    tl.store(target + row * stride + at, values, mask=inside)


@triton.jit
def gacprof_row_sum(  # type: ignore[no-untyped-def]
    source, target, rows, columns, stride, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    total = tl.zeros((ROWS,), dtype=tl.float32)
    for start in range(0, columns, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        inside = (row[:, None] < rows) & (column[None, :] < columns)
        values = tl.load(source + row[:, None] * stride + column[None, :], mask=inside, other=0.0)
        total += tl.sum(values.to(tl.float32), axis=1)
    tl.store(target + row, total, mask=row < rows)


@triton.jit
def gacprof_gemm(  # type: ignore[no-untyped-def]
    a,
    b,
    c,
    M,
    N,
    K,
    stride_a,
    stride_b,
    stride_c,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
):
    row = tl.program_id(0) * TILE_M + tl.arange(0, TILE_M)
    column = tl.program_id(1) * TILE_N + tl.arange(0, TILE_N)
    step = tl.arange(0, TILE_K)
    total = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
    for start in range(0, K, TILE_K):
        depth = start + step
        inside_a = (row[:, None] < M) & (depth[None, :] < K)
        inside_b = (depth[:, None] < K) & (column[None, :] < N)
        left = tl.load(a + row[:, None] * stride_a + depth[None, :], mask=inside_a, other=0.0)
        right = tl.load(b + depth[:, None] * stride_b + column[None, :], mask=inside_b, other=0.0)
        total = tl.dot(left, right, total)
    inside_c = (row[:, None] < M) & (column[None, :] < N)
    tl.store(c + row[:, None] * stride_c + column[None, :], total.to(tl.float16), mask=inside_c)
