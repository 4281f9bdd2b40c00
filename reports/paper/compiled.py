"""What loads and which MMA Triton picks by divisibility of the dims: compiled for a GPU that need
not be here, never run. Its wheel carries ptxas and nvdisasm. Importing this imports Triton.

Rows are read by the kernels that a sweep times (:mod:`gacprof.operators.stream_triton`); the GEMM
is for the table of docs/kernels.md alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import BaseBackend, GPUTarget
from triton.compiler import ASTSource

from gacprof.operators.stream_triton import BLOCK, KERNELS


@triton.jit
def gemm(  # type: ignore[no-untyped-def]
    a, b, c, M, N, K, stride_a, stride_b, stride_c,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr,
):  # fmt: skip
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


PROBES: dict[str, tuple[Any, int, int, tuple[int, ...]]] = {
    "row_sum": (triton.jit(KERNELS["row_sum"]), 2, 1, (BLOCK,)),
    "row_copy": (triton.jit(KERNELS["row_copy"]), 2, 1, (BLOCK,)),
    "gemm": (gemm, 3, 6, (64, 64, 32)),
}
"""Each kernel with how many pointers and dims it takes, and its tile sizes."""


def compiled(probe: str, arch: int, divisor: int) -> Mapping[str, Any]:
    """``ptx`` and ``sass`` of a kernel in fp16, all dims divisible by ``divisor``."""
    function, pointers, dims, tiles = PROBES[probe]
    kinds = ["*fp16"] * pointers + ["i32"] * dims + ["constexpr"] * len(tiles)
    known = range(pointers + dims) if divisor > 1 else range(pointers)
    hints = {(i,): [["tt.divisibility", 16 if i < pointers else divisor]] for i in known}
    sizes = {(pointers + dims + i,): size for i, size in enumerate(tiles)}
    source = ASTSource(function, dict(zip(function.arg_names, kinds, strict=True)), sizes, hints)
    target = GPUTarget("cuda", arch, 32)
    asm: Mapping[str, Any] = triton.compile(source, target, {"num_warps": 4, "num_stages": 3}).asm
    return asm


LOAD = r"\b(ld\.global[.\w]*?(?:\.v(\d))?\.[busf](\d+))\b"
ASYNCHRONOUS = r"\b(cp\.async\.c[ag]\.shared\.global)[^;]*?\],\s*\[[^]]*\],\s*(0x[0-9a-f]+|\d+)"


def loads(ptx: str) -> list[tuple[int, str]]:
    """Global loads of a PTX text, each with its bytes before it, as often as they stand there."""
    found = [(int(bits) // 8 * int(n or 1), text) for text, n, bits in re.findall(LOAD, ptx)]
    return found + [(int(size, 0), text) for text, size in re.findall(ASYNCHRONOUS, ptx)]


def jit_divisibility(value: int) -> int:
    """The divisor that Triton's JIT tells its compiler about an integer argument: 16 or 1."""
    return 16 if "D" in BaseBackend.get_int_specialization(value, align=True) else 1
