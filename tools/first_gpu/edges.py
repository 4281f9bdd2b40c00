"""Four edges for Nsight Compute: each on both sides, one call a side, after a first one.

``python3 tools/first_gpu --steps ncu`` profiles it, with all counters of ``gacprof.kernels.ncu``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from gacprof.operators.stream_triton import launcher


def product(m: int, n: int, k: int) -> Callable[[], object]:
    x = torch.randn(m, k, device="cuda").bfloat16()
    weight = torch.randn(n, k, device="cuda").bfloat16()
    return partial(functional.linear, x, weight)


def attention(head_dim: int) -> Callable[[], object]:
    query, key, value = torch.randn(3, 1, 32, 1024, head_dim, device="cuda").bfloat16()

    def call() -> object:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return functional.scaled_dot_product_attention(query, key, value, is_causal=True)

    return call


def row_sum(rows: int, k: int, specialise: bool) -> Callable[[], object]:
    """A Triton kernel, with or without Triton's mark of divisibility by 16."""
    source = torch.randn(rows, k, device="cuda").half()
    return partial(launcher("row_sum", specialise), source, torch.empty(rows, device="cuda"))


def main() -> None:
    calls = [product(1024, 4096, k) for k in (112, 108, 107)]
    calls += [attention(head_dim) for head_dim in (128, 136)]
    calls += [product(1, 4096, k) for k in (4096, 4095)]
    calls += [product(512, 4096, k) for k in (4080, 4088, 4092, 4090, 4095)]
    sums = [(k, True) for k in (4096, 4088, 4090, 4095)] + [(4096, False), (4095, False)]
    calls += [row_sum(65_536, *sides) for sides in sums]
    for call in calls:
        call()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    for call in calls:
        call()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()


if __name__ == "__main__":
    main()
