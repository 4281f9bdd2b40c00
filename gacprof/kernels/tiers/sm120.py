"""Blackwell for desktops (sm120, sm121: RTX 50, RTX PRO, GB10): TMA, but ``mma.sync``.

There is neither warpgroup MMA nor tcgen05, and 99 KiB of shared memory a block. nvjet names
show it (``nvjet_sm120_…_mma_…_tmaAB``): TMA feeds the MMA of Ampere. Not measured.
"""

from __future__ import annotations

from dataclasses import replace

from gacprof.kernels.tiers import AlignmentTier, Architecture
from gacprof.kernels.tiers.sm80 import FP32, PAIR, SINGLE, TF32

TMA = AlignmentTier(
    16, "TMA, mma.sync", "nvjet_sm120 mma tmaAB, cutlass_80 align8",
    "TMA needs strides of a multiple of 16 bytes", "expected",
)  # fmt: skip
_FP8 = AlignmentTier(
    16, "TMA, mma.sync with block scales", "cutlass3x_sm120 e4m3 align16",
    "all fp8 kernels for sm120 ask for 16 elements",
)  # fmt: skip
HALF = (TMA, replace(PAIR, basis="expected"), replace(SINGLE, basis="expected"))
CHIPS = (
    Architecture(
        "sm120", "RTX 50, RTX PRO 6000, GB10",
        {"float16": HALF, "bfloat16": HALF, "tf32": TF32, "float32": FP32, "float8_e4m3": (_FP8,)},
        serves=("sm121",),
    ),
)  # fmt: skip
