"""A100 (sm80): three tiers for 16-bit types, told apart by what ``cp.async`` can copy.

Alignments are those of the kernels in libcublasLt 11.11, 12.8 and 13.10 (the fixture
tests/fixtures/kernel_names holds a sample): ``ampere_*`` has ldg8 only; CUTLASS for sm80 has
align8 and align2 and no align4; align1 exists only with the m16n8k8 instruction of Turing.
"""

from __future__ import annotations

from gacprof.kernels.tiers import AlignmentTier, Architecture

_ASYNC_16, _ASYNC_4 = "cp.async of 16 bytes, multistage", "cp.async of 4 bytes, multistage"
WIDE = AlignmentTier(
    16, _ASYNC_16, "ampere_*_ldg8, sm80_xmma, cutlass_80 align8, m16n8k16",
    "16 bytes is the widest cp.async, one instruction for 8 half-precision elements",
)  # fmt: skip
PAIR = AlignmentTier(
    4, _ASYNC_4, "cutlass_80 align2, m16n8k16",
    "4 bytes is the narrowest cp.async: four times the load instructions of the 16-byte kernels",
)  # fmt: skip
SINGLE = AlignmentTier(
    2, "2-byte loads through registers, two stages", "cutlass_75 align1, m16n8k8",
    "cp.async cannot copy 2 bytes, so the pipeline of Turing serves, with half the work an MMA",
)  # fmt: skip
HALF = (WIDE, PAIR, SINGLE)
TF32 = (
    AlignmentTier(
        16, _ASYNC_16, "cutlass_80 s1688gemm align4",
        "16 bytes is the widest cp.async, 4 elements of fp32",
    ),
    AlignmentTier(
        4, _ASYNC_4, "cutlass_80 s1688gemm align1, sm80_xmma aligna4",
        "every fp32 row is a multiple of 4 bytes, the narrowest cp.async",
    ),
)  # fmt: skip
FP32 = (
    AlignmentTier(
        4, "4-byte loads", "ampere_sgemm, cutlass_80_simt_sgemm align1",
        "no tensor cores: kernels load single elements, so alignment hardly matters",
    ),
)  # fmt: skip
INT8 = (
    AlignmentTier(
        16, _ASYNC_16, "ampere_*_i16832gemm_ldg16, cutlass_80 align16, m16n8k32",
        "16 elements of int8 are 16 bytes",
    ),
    AlignmentTier(
        4, _ASYNC_4, "cutlass_80 align4, m16n8k32",
        "4 bytes is the narrowest cp.async; below it cuBLASLt offers no tensor-core kernel",
    ),
)  # fmt: skip
TIERS = {"float16": HALF, "bfloat16": HALF, "tf32": TF32, "float32": FP32, "int8": INT8}

CHIPS = (
    Architecture(
        "sm80", "A100, A30", TIERS,
        ("cuBLAS asks on A100 for multiples of 64 (fp16), 32 (tf32) and 128 (int8) elements to "
         "be most efficient: that is whole tiles and cache lines, not a kernel's alignment",),
    ),
)  # fmt: skip
