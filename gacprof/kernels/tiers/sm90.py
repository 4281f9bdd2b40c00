"""H100 and H200 (sm90): TMA or not.

``nvjet`` (cuBLAS ≥ 12.8) and CUTLASS 3 move operands with TMA, whose strides must be multiples
of 16 bytes (CUDA driver API, cuTensorMapEncodeTiled, globalStrides). What TMA cannot address
goes to ``sm90_xmma`` kernels tagged ``aligna4`` and ``aligna2``. The tags are bytes (see
kernels/word_names.py), so in half precision they are 2 elements and 1: there is no tier at 4, and
odd rows still find a kernel for sm90. Which kernel really runs is to be measured.
"""

from __future__ import annotations

from gacprof.kernels.tiers import AlignmentTier, Architecture
from gacprof.kernels.tiers.sm80 import FP32

_NO_TMA = "TMA cannot address such rows"
TMA = AlignmentTier(
    16, "TMA, warpgroup MMA", "nvjet, sm90_xmma untagged, cutlass3x_sm90 align8",
    "TMA needs strides of a multiple of 16 bytes", "document",
)  # fmt: skip
HALF = (
    TMA,
    AlignmentTier(
        4, "cp.async of 4 bytes", "sm90_xmma aligna4_alignc4, cutlass_80 align2",
        f"{_NO_TMA}, and 4 bytes is the narrowest cp.async",
    ),
    AlignmentTier(
        2, "2-byte loads through registers", "sm90_xmma aligna2_alignc2, cutlass_75 align1",
        "neither TMA nor cp.async can copy 2 bytes",
    ),
)  # fmt: skip
TF32 = (
    TMA,
    AlignmentTier(
        4, "cp.async of 4 bytes", "sm80_xmma aligna4, cutlass_80 s1688gemm align1",
        f"{_NO_TMA}, and 4 bytes is the narrowest cp.async",
    ),
)  # fmt: skip
BYTE = (
    TMA,
    AlignmentTier(
        4, "cp.async of 4 bytes", "sm90_xmma aligna4_alignc4",
        f"{_NO_TMA}; below 4 bytes cuBLASLt offers no kernel",
    ),
)  # fmt: skip
CHIPS = (
    Architecture(
        "sm90", "H100, H200, GH200",
        {"float16": HALF, "bfloat16": HALF, "tf32": TF32, "float32": FP32, "int8": BYTE,
         "float8_e4m3": BYTE},
        ("wgmma for 16-bit types works on tiles of 64 × (8 … 256 in steps of 8) × 16 (PTX ISA)",),
    ),
)  # fmt: skip
