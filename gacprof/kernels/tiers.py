"""Alignment tiers of GEMM kernels, by GPU generation.

A GPU loads a matrix in units: 16 bytes through TMA or a 128-bit ``cp.async``, 4 bytes through
the narrowest ``cp.async``, anything narrower through registers. A kernel is compiled for one
unit, and a matrix fits it only if every row starts on such a boundary: if the leading
dimension, in bytes, is a multiple of it. Hence tiers. They are rules, read out of library
binaries and NVIDIA's documents: they explain what was measured and predict what was not, and
never stand in for a measurement. Alignments are those of the kernels in libcublasLt 11.11, 12.8 and
13.10 (the fixture tests/fixtures/kernel_names holds a sample).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from typing import ClassVar

from gacprof.core.errors import MapError
from gacprof.core.files import Record
from gacprof.core.plugins import brought, instance
from gacprof.core.points import BYTES_PER_ELEMENT

FP4 = "float4_e2m1"
"""Two elements a byte, with scales of blocks (NVFP4, MXFP4): no operator here measures it."""


@dataclass(frozen=True)
class AlignmentTier:
    """Kernels that ask for rows of a multiple of ``bytes``.

    ``basis`` says how it is known: ``binary`` (kernels of that alignment are in the library),
    ``document`` (NVIDIA says so) or ``expected`` (it follows from the mechanism; unmeasured).
    """

    bytes: int
    load: str
    kernels: str
    why: str
    basis: str = "binary"

    def elements(self, dtype: str) -> int:
        """What a row must be a multiple of, in elements of ``dtype``. Raises KeyError."""
        return 2 * self.bytes if dtype == FP4 else max(1, self.bytes // BYTES_PER_ELEMENT[dtype])


Tiers = Sequence[AlignmentTier]


@dataclass(frozen=True)
class Architecture:
    """One chip family's tiers by data type, widest alignment first.

    ``serves`` are other architectures that these rules hold for.
    """

    name: str
    chips: str
    tiers: Mapping[str, Tiers]
    notes: Sequence[str] = ()
    serves: Sequence[str] = ()

    def tiers_for(self, dtype: str) -> Tiers:
        """The tiers of a data type. Raises :class:`MapError` for one without rules."""
        if dtype not in self.tiers:
            raise MapError(
                f"there are no alignment rules for {dtype} on {self.name} "
                f"(there are {', '.join(self.tiers)})"
            )
        return self.tiers[dtype]


@dataclass(frozen=True)
class Prediction(Record):
    """Which tier a GEMM's row lengths put it in, and which dimension holds it there.

    ``tier`` is None where the library has no kernel for such rows; ``needs`` is the multiple,
    in elements, that ``limiting`` fails.
    """

    derived: ClassVar = ("sentence",)

    arch: str
    dtype: str
    tier: AlignmentTier | None
    limiting: str | None
    needs: int | None
    basis: str = "rules"

    @property
    def sentence(self) -> str:
        if self.tier is None:
            return f"{self.limiting} is no multiple of {self.needs}: no kernel is known for it"
        served = f"{self.tier.load} ({self.tier.kernels})"
        if self.limiting is None:
            return f"all rows are multiples of {self.tier.elements(self.dtype)}: {served}"
        return f"{self.limiting} is no multiple of {self.needs}: {served}; {self.tier.why}"


_ASYNC_16, _ASYNC_4 = "cp.async of 16 bytes, multistage", "cp.async of 4 bytes, multistage"
_TMA_NEEDS = "TMA needs strides of a multiple of 16 bytes"
_NO_TMA = "TMA cannot address such rows"

# sm80, A100: three tiers for 16-bit types, told apart by what ``cp.async`` can copy. ``ampere_*``
# has ldg8 only; CUTLASS for sm80 has align8 and align2 and no align4; align1 exists only with the
# m16n8k8 instruction of Turing.
_WIDE = AlignmentTier(
    16, _ASYNC_16, "ampere_*_ldg8, sm80_xmma, cutlass_80 align8, m16n8k16",
    "16 bytes is the widest cp.async, one instruction for 8 half-precision elements",
)  # fmt: skip
_PAIR = AlignmentTier(
    4, _ASYNC_4, "cutlass_80 align2, m16n8k16",
    "4 bytes is the narrowest cp.async: four times the load instructions of the 16-byte kernels",
)  # fmt: skip
_SINGLE = AlignmentTier(
    2, "2-byte loads through registers, two stages", "cutlass_75 align1, m16n8k8",
    "cp.async cannot copy 2 bytes, so the pipeline of Turing serves, with half the work an MMA",
)  # fmt: skip
_TF32_80 = (
    AlignmentTier(
        16, _ASYNC_16, "cutlass_80 s1688gemm align4",
        "16 bytes is the widest cp.async, 4 elements of fp32",
    ),
    AlignmentTier(
        4, _ASYNC_4, "cutlass_80 s1688gemm align1, sm80_xmma aligna4",
        "every fp32 row is a multiple of 4 bytes, the narrowest cp.async",
    ),
)  # fmt: skip
_FP32 = (
    AlignmentTier(
        4, "4-byte loads", "ampere_sgemm, cutlass_80_simt_sgemm align1",
        "no tensor cores: kernels load single elements, so alignment hardly matters",
    ),
)  # fmt: skip
_INT8_80 = (
    AlignmentTier(
        16, _ASYNC_16, "ampere_*_i16832gemm_ldg16, cutlass_80 align16, m16n8k32",
        "16 elements of int8 are 16 bytes",
    ),
    AlignmentTier(
        4, _ASYNC_4, "cutlass_80 align4, m16n8k32",
        "4 bytes is the narrowest cp.async; below it cuBLASLt offers no tensor-core kernel",
    ),
)  # fmt: skip

# sm86 (A10, RTX 30) and sm89 (L4, L40, RTX 40) run the kernels of sm80 (cuBLAS holds none of their
# own for 16-bit types). They differ in shared memory, 99 KiB a block instead of 163: attention
# takes smaller tiles. Ada adds fp8, with kernels of its own that ask for 16 bytes.
_FP8_89 = AlignmentTier(
    16, _ASYNC_16, "sm89_xmma e4m3, m16n8k32",
    "all fp8 kernels for sm89 are untagged, which is 16 bytes",
)  # fmt: skip

# sm90, H100 and H200: TMA or not. ``nvjet`` (cuBLAS ≥ 12.8) and CUTLASS 3 move operands with TMA,
# whose strides must be multiples of 16 bytes (CUDA driver API, cuTensorMapEncodeTiled,
# globalStrides). What TMA cannot address goes to ``sm90_xmma`` kernels tagged ``aligna4`` and
# ``aligna2``. The tags are bytes (names.toml), so in half precision they are 2 elements
# and 1: there is no tier at 4, and odd rows still find a kernel for sm90. Which kernel really runs
# is to be measured.
_TMA_90 = AlignmentTier(
    16, "TMA, warpgroup MMA", "nvjet, sm90_xmma untagged, cutlass3x_sm90 align8", _TMA_NEEDS,
    "document",
)  # fmt: skip
_HALF_90 = (
    _TMA_90,
    AlignmentTier(
        4, "cp.async of 4 bytes", "sm90_xmma aligna4_alignc4, cutlass_80 align2",
        f"{_NO_TMA}, and 4 bytes is the narrowest cp.async",
    ),
    AlignmentTier(
        2, "2-byte loads through registers", "sm90_xmma aligna2_alignc2, cutlass_75 align1",
        "neither TMA nor cp.async can copy 2 bytes",
    ),
)  # fmt: skip
_TF32_90 = (
    _TMA_90, replace(_HALF_90[1], kernels="sm80_xmma aligna4, cutlass_80 s1688gemm align1")
)  # fmt: skip
_BYTE_90 = (
    _TMA_90,
    AlignmentTier(
        4, "cp.async of 4 bytes", "sm90_xmma aligna4_alignc4",
        f"{_NO_TMA}; below 4 bytes cuBLASLt offers no kernel",
    ),
)  # fmt: skip

# sm100 (B200; sm103): TMA and tcgen05, or the kernels of older chips. libcublasLt holds align8
# kernels alone for 16-bit types (``cutlass3x_sm100``) and no ``aligna`` variants, and CUTLASS 4.2
# generates no others; sm90's warpgroup MMA does not exist here, so what TMA cannot address falls to
# ``mma.sync`` kernels of sm80. Of int8 the sm_100 and sm_120 parts of libcublasLt 13.1 hold one of
# align 4 (``cutlass_80_wmma_*_s8_forwardCompat``), of fp4 align 32 alone. Not measured.
_TMA_100 = AlignmentTier(
    16, "TMA, tcgen05", "nvjet_sm100, cutlass3x_sm100 align8", _TMA_NEEDS, "document"
)
_HALF_100 = (
    _TMA_100,
    *(replace(t, kernels=f"{t.kernels} (mma.sync)", basis="expected") for t in (_PAIR, _SINGLE)),
)
_FP8_100 = AlignmentTier(
    4, "4-byte loads, tcgen05", "cutlass3x_sm100 e4m3 align4",
    f"{_NO_TMA}; fp8 alone has kernels for 4 bytes",
)  # fmt: skip
_FP4_100 = AlignmentTier(
    16, "TMA, tcgen05 with block scales", "cutlass3x_sm100 e2m1 align32",
    "all fp4 kernels ask for 32 elements; beside fp6 or fp8, CUTLASS asks for 128",
)  # fmt: skip
_INT8_OLD = AlignmentTier(
    4, "cp.async of 4 bytes (wmma)", "cutlass_80_wmma s8_forwardCompat align4",
    f"{_NO_TMA}: a kernel of sm80 serves",
)  # fmt: skip

# sm120 (RTX 50, RTX PRO; sm121: GB10): TMA, but ``mma.sync``. There is neither warpgroup MMA nor
# tcgen05, and 99 KiB of shared memory a block. nvjet names show it (``nvjet_sm120_…_mma_…_tmaAB``):
# TMA feeds the MMA of Ampere. Not measured.
_TMA_120 = AlignmentTier(
    16, "TMA, mma.sync", "nvjet_sm120 mma tmaAB, cutlass_80 align8", _TMA_NEEDS, "expected"
)
_HALF_120 = (_TMA_120, *(replace(tier, basis="expected") for tier in (_PAIR, _SINGLE)))
_FP8_120 = AlignmentTier(
    16, "TMA, mma.sync with block scales", "cutlass3x_sm120 e4m3 align16",
    "all fp8 kernels for sm120 ask for 16 elements",
)  # fmt: skip
_INT8_120 = (replace(_TMA_120, kernels="cutlass_80 s8 align16"), _INT8_OLD)
_FP4_120 = replace(
    _FP4_100, load="TMA, mma.sync with block scales", kernels="cutlass3x_sm120 e2m1 align32"
)


def _tiers(half: Tiers, tf32: Tiers, **others: Tiers) -> dict[str, Tiers]:
    return {"float16": half, "bfloat16": half, "tf32": tf32, "float32": _FP32, **others}


_AMPERE = _tiers((_WIDE, _PAIR, _SINGLE), _TF32_80, int8=_INT8_80)
CHIPS = (
    Architecture(
        "sm80", "A100, A30", _AMPERE,
        ("cuBLAS asks on A100 for multiples of 64 (fp16), 32 (tf32) and 128 (int8) elements to "
         "be most efficient: that is whole tiles and cache lines, not a kernel's alignment",),
    ),
    Architecture("sm86", "A10, A40, RTX 30", _AMPERE, serves=("sm87",)),
    Architecture(
        "sm89", "L4, L40, RTX 40", _AMPERE | {"float8_e4m3": (_FP8_89,)},
        ("fp8 rows that are no multiple of 16 have no kernel: PyTorch's _scaled_mm refuses them",),
    ),
    Architecture(
        "sm90", "H100, H200, GH200",
        _tiers(_HALF_90, _TF32_90, int8=_BYTE_90, float8_e4m3=_BYTE_90),
        ("wgmma for 16-bit types works on tiles of 64 × (8 … 256 in steps of 8) × 16 (PTX ISA)",),
    ),
    Architecture(
        "sm100", "B200, GB200, B300",
        _tiers(_HALF_100, (_TMA_100, _TF32_80[1]), float8_e4m3=(_TMA_100, _FP8_100),
               int8=(_TMA_100, _INT8_OLD), float4_e2m1=(_FP4_100,)),
        ("tcgen05 works on M 64 or 128 and N in steps of 8 or 16 (PTX ISA)",),
        serves=("sm103",),
    ),
    Architecture(
        "sm120", "RTX 50, RTX PRO 6000, GB10",
        _tiers(_HALF_120, _TF32_80, float8_e4m3=(_FP8_120,), int8=_INT8_120,
               float4_e2m1=(_FP4_120,)),
        serves=("sm121",),
    ),
)  # fmt: skip


@cache
def architectures() -> Mapping[str, Architecture]:
    """All that there are rules for, by name, oldest first; other packages' modules with ``CHIPS``
    too."""
    others = brought(
        "tiers", lambda module: [instance(chip, Architecture) for chip in module.CHIPS]
    )
    found = {chip.name: chip for chip in (*CHIPS, *chain(*others.values()))}
    return dict(sorted(found.items(), key=lambda item: (len(item[0]), item[0])))


def architecture(name: str) -> Architecture:
    """The rules for ``sm80``, ``sm90a`` and so on. Raises :class:`MapError` for others."""
    plain = name.rstrip("af")
    for chip in architectures().values():
        if plain in (chip.name, *chip.serves):
            return chip
    raise MapError(
        f"there are no alignment rules for '{name}' (there are {', '.join(architectures())}): "
        "measure it, or bring its tiers from a package (docs/extend.md)"
    )


def predict(arch: str, dtype: str, rows: Mapping[str, int]) -> Prediction:
    """The tier of a GEMM whose operands' rows have these lengths in elements.

    ``rows`` maps a dimension's name to its size: for ``y = x Wᵀ`` that is K, the row of x and
    of W, and N, the row of y; the token count is no row length. Raises :class:`MapError` for
    an architecture or a data type without rules, or a size that is not positive.
    """
    chip = architecture(arch)
    tiers = chip.tiers_for(dtype)
    if not rows or any(size <= 0 for size in rows.values()):
        raise MapError(f"rows must be positive sizes by name, not {dict(rows)}")

    def first_fitting(name: str) -> int:  # past the end if none does
        fits = (i for i, tier in enumerate(tiers) if rows[name] % tier.elements(dtype) == 0)
        return next(fits, len(tiers))

    limiting = max(rows, key=first_fitting)
    index = first_fitting(limiting)
    tier = tiers[index] if index < len(tiers) else None
    if index == 0:
        return Prediction(chip.name, dtype, tier, None, None)
    return Prediction(chip.name, dtype, tier, limiting, tiers[index - 1].elements(dtype))
