"""A small table in the form of others' measurements, made here: none of its times were measured.

Times are products of powers of M, N and K, so that interpolating logarithms is exact but for the
planted step: from 257 rows on everything takes :data:`STEP` times as long.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any

STEP = 1.25
M = (1, 2, 4, 8, 16, 17, 64, 256, 257, 512, 1024, 2048)
N = K = (128, 512, 1024, 2048, 4096, 16384)
FACTORS = {"vllm": 1.0, "sglang": 1.05, "trtllm": 0.96}
"""Each engine's times beside the first's."""

Row = Mapping[str, Any]


def planted_us(m: int, n: int, k: int, factor: float = 1.0) -> float:
    return factor * 0.002 * m**0.5 * (n * k) ** 0.5 * (STEP if m > 256 else 1.0)


def rows_of(
    factor: float = 1.0, dtype: str = "bfloat16", ms: Iterable[int] = M
) -> list[dict[str, Any]]:
    return [
        {
            "gemm_dtype": dtype,
            "kernel_source": "made",
            "m": m,
            "n": n,
            "k": k,
            "latency": planted_us(m, n, k, factor) / 1e3,
        }
        for m, n, k in product(ms, N, K)
    ]
