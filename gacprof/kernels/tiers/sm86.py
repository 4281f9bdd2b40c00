"""Ampere and Ada for desktops and inference (sm86: A10, RTX 30; sm89: L4, L40, RTX 40).

They run the kernels of sm80 (cuBLAS holds none of their own for 16-bit types), so the tiers
are those of A100. They differ in shared memory, 99 KiB a block instead of 163: attention
takes smaller tiles. Ada adds fp8, with kernels of its own that ask for 16 bytes.
"""

from __future__ import annotations

from gacprof.kernels.tiers import AlignmentTier, Architecture
from gacprof.kernels.tiers.sm80 import TIERS

_FP8 = AlignmentTier(
    16, "cp.async of 16 bytes, multistage", "sm89_xmma e4m3, m16n8k32",
    "all fp8 kernels for sm89 are untagged, which is 16 bytes",
)  # fmt: skip
_NO_KERNEL = "fp8 rows that are no multiple of 16 have no kernel: PyTorch's _scaled_mm refuses them"
CHIPS = (
    Architecture("sm86", "A10, A40, RTX 30", TIERS, serves=("sm87",)),
    Architecture("sm89", "L4, L40, RTX 40", TIERS | {"float8_e4m3": (_FP8,)}, (_NO_KERNEL,)),
)
