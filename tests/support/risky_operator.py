"""An operator of a user's that fails in every way, for tests of devices and workers."""

from __future__ import annotations

import os
import time
from collections import Counter

import torch

from gacprof.operators import operator

KILLS, RAISES, HANGS_LATER, FINE = 61, 62, 63, 64
CALLS: Counter[int] = Counter()
ADDRESSES: dict[int, list[tuple[int, int]]] = {}
"""By size, addresses of both operands of each call."""


@operator(x=("M", "K"), w=("N", "K"), weights=("w",))
def risky(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    size = x.shape[1]
    CALLS[size] += 1
    ADDRESSES.setdefault(size, []).append((x.data_ptr(), w.data_ptr()))
    if size == KILLS:
        os._exit(3)
    if size == RAISES:
        raise ValueError("no such size\nand more")
    if size == HANGS_LATER and CALLS[size] > 1:
        time.sleep(60)
    return x @ w.T
