"""B200 and GB200 (sm100, sm103): TMA and tcgen05, or the kernels of older chips.

libcublasLt 12.8 and 13.10 hold align8 kernels alone for 16-bit types (``cutlass3x_sm100``) and
no ``aligna`` variants of sm100; sm90's warpgroup MMA does not exist here, so whatever TMA
cannot address falls to ``mma.sync`` kernels of sm80. Not measured.
"""

from __future__ import annotations

from dataclasses import replace

from gacprof.kernels.tiers import AlignmentTier, Architecture
from gacprof.kernels.tiers.sm80 import FP32, PAIR, SINGLE, TF32

TMA = AlignmentTier(
    16, "TMA, tcgen05", "nvjet_sm100, cutlass3x_sm100 align8",
    "TMA needs strides of a multiple of 16 bytes", "document",
)  # fmt: skip
_FP8_NARROW = AlignmentTier(
    4, "4-byte loads, tcgen05", "cutlass3x_sm100 e4m3 align4",
    "TMA cannot address such rows; fp8 alone has kernels for 4 bytes",
)  # fmt: skip
_OLDER = (
    replace(tier, kernels=f"{tier.kernels} (mma.sync)", basis="expected") for tier in (PAIR, SINGLE)
)
HALF = (TMA, *_OLDER)
CHIPS = (
    Architecture(
        "sm100", "B200, GB200, B300",
        {"float16": HALF, "bfloat16": HALF, "tf32": (TMA, *TF32[1:]), "float32": FP32,
         "float8_e4m3": (TMA, _FP8_NARROW), "int8": (TMA,)},
        ("tcgen05 works on M 64 or 128 and N in steps of 8 or 16 (PTX ISA)",),
        serves=("sm103",),
    ),
)  # fmt: skip
