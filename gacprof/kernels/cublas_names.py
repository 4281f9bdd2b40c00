"""Reading the names of cuBLAS's kernels (and of cuDNN's older ones, which follow the same rules).

Each reader returns the fields of :class:`~gacprof.kernels.kernel.Kernel` that a name gives.
"""

from __future__ import annotations

import re
from typing import Any

from gacprof.kernels.kernel import Types
from gacprof.kernels.name_parts import (
    Signature,
    Words,
    data_type,
    data_types,
    numbers,
    run_together,
)

Fields = dict[str, Any]

ARCHITECTURES = {
    **{"kepler": "sm35", "maxwell": "sm50", "pascal": "sm60", "volta": "sm70", "turing": "sm75"},
    **{"ampere": "sm80", "ada": "sm89", "hopper": "sm90", "blackwell": "sm100"},
}
OP_LETTERS = {
    "s": ("float32", "float32"),
    "h": ("float16", "float16"),
    "d": ("float64", "float64"),
    "c": ("complex64", "complex64"),
    "z": ("complex128", "complex128"),
    "gc": ("complex64", "complex64"),  # Gauss's three products for one complex product
    "gz": ("complex128", "complex128"),
    "i": ("int8", "int32"),
    "b": ("bfloat16", "bfloat16"),
}
"""BLAS letter → (operands where the name gives no other, accumulator)."""
MMA = {
    "".join(map(str, shape)): shape
    for shape in (
        *((8, 8, k) for k in (4, 16, 32, 128)),  # Volta fp16 and Ampere fp64; Turing int8
        *((16, 8, k) for k in (4, 8, 16, 32, 64, 128, 256)),  # from Turing on
        *((16, 16, 16), (32, 8, 16), (8, 32, 16)),  # wmma
    )
}
"""Instruction shapes as cuBLAS and CUTLASS run them together in a name (PTX ISA, mma, wmma)."""

NVJET_TYPES = {
    **{"h": "float16", "t": "bfloat16", "s": "float32", "d": "float64"},
    **{"c": "complex64", "z": "complex128", "i": "int32", "b": "int8"},
    **{"q": "float8_e4m3", "r": "float8_e5m2", "o": "float4_e2m1"},
}
"""Type letters in nvjet names, after cuBLAS's own ``HSH``, ``TST``. In public traces ``ootst`` is
what an NVFP4 product runs and ``biu`` an int8 one; i and b by analogy, u is not understood."""
_NVJET = {
    "arch": r"sm\d+[af]?",
    "pair": r"(\d+x\d+)f?",  # clusters are 2x1 or 2x1f
    "triple": r"\d+x\d+x\d+",
    "number": r"\d+",
    "raster": r"[vh]",
    "layout": r"[NTnt]{2,4}",
}


def read_nvjet(signature: Signature) -> Fields:
    """Kernels generated at run time for Hopper and Blackwell (cuBLAS ≥ 12.8).

        nvjet_[sm90_]hsh_128x256_64x4_2x1_[2cta_]v_bz_coopA_TNN
                     types M×N  K×stages cluster raster flags layout
        nvjet_sm120_tst_mma_128x96x64_2_32x48x64_tmaAB_bz_TNNN         (no wgmma, no tcgen05)
                            tile      stages  warp's tile

    Types are A, compute, D, or A, B, C, compute, D. Operands come through TMA.
    """
    words = Words(signature.path.split("_")[1:], _NVJET)
    letters = words.rest.pop(0) if words.rest else ""
    known = [NVJET_TYPES.get(letter) for letter in letters]
    types = Types()
    if len(known) >= 3:
        b = known[1] if len(known) > 3 else known[0]
        types = Types(known[0], b, known[0], known[-2], known[-1])
    flags: dict[str, Any] = dict.fromkeys(words.rest, True)
    flags["c_type"] = known[2] if len(known) == 5 else None
    flags["raster"] = words.get("raster")
    flags["warp_tile"] = words.get("triple", 1)
    pairs, made = words.shapes("pair"), words.fields()
    if triples := words.shapes("triple"):
        stages = words.get("number")
        made |= {"tile": triples[0], "stages": int(stages) if stages else None}
    elif len(pairs) > 1:
        made |= {"tile": (*pairs[0], pairs[1][0]), "stages": pairs[1][1]}
        made["cluster"] = pairs[2] if len(pairs) > 2 else None
    elif pairs:
        made["tile"] = pairs[0]
    split_k = any(word.lower().startswith("splitk") for word in words.rest)
    return made | {"types": types, "split_k": split_k, "flags": flags}


NATIVE_OP = r"(gc|gz|[a-z])(\d*)(?:gemm|cudnn|imma)(?:3m)?"
_NATIVE = {
    "pair": r"\d+x\d+",
    "tile": r"\d+x\d+x\d+",
    "sliced": r"sliced(\d+x\d+)",
    "alignment": r"ldg(\d+)",
    "layout": r"[ntcNTC]{2}",
    "marker": r"stages",
}


def read_native(signature: Signature) -> Fields:
    """cuBLAS's assembler kernels, named after the architecture.

        ampere_fp16_s16816gemm_fp16_128x64_sliced1x2_ldg8_relu_f2f_stages_64x5_tn
        arch   out  op        in   tile M×N          align         K×stages    layout

    No ``out`` means the accumulator's type; no ``in`` the operation's own (``sgemm``: fp32).
    ``ldg8`` loads 8 elements at a time, so rows must be multiples of 8. cuDNN's older
    convolutions (``volta_scudnn_…``) follow the same rules.
    """
    tokens = signature.path.split("_")
    arch = ARCHITECTURES.get(tokens[0])
    ops = [(i, op) for i, token in enumerate(tokens) if (op := re.fullmatch(NATIVE_OP, token))]
    if not ops:
        return {"arch": arch}
    at, op = ops[0]
    words = Words(tokens[at + 1 :], _NATIVE)
    rest = words.rest
    operand, accumulator = OP_LETTERS.get(op[1], (None, None))
    if rest and (given := data_type(rest[0])):
        operand = given
        rest = [token for token in rest if not data_type(token)]
    out = next(iter(data_types(tokens[1:at])), accumulator)
    flags = {"op": tokens[at], "sliced": words.get("sliced"), "epilogue": "_".join(rest) or None}
    made, pairs = words.fields(), words.shapes("pair")
    if "tile" not in made and pairs:
        made["tile"] = pairs[0]
        if words.found["marker"] and len(pairs) > 1:
            made |= {"tile": (*pairs[0], pairs[1][0]), "stages": pairs[1][1]}
    return made | {
        "arch": arch,
        "types": Types(operand, operand, operand, accumulator, out),
        "mma": MMA.get(op[2]),
        "split_k": "splitK" in rest,
        "flags": flags,
    }


_XMMA_END = re.compile(
    r"(?:_execute)?(?:_segment_k_(?P<segment>on|off)|_(?P<split>split_k))?"
    r"_kernel(?P<split2>_split_k)?(?:__\d+x_(?P<owner>\w+))?$"
)
_XMMA_DETAILS = re.compile(r"tilesize\d|(?:c?bf16|c?f16|c?f32|c?f64|tf32|ci8|i8|u8|e4m3|e5m2)(?!$)")
"""The first word of what follows the operation."""
_XMMA = {
    "tile": r"tilesize(\d+x\d+x\d+)",
    "stages": r"stage(\d+)",
    "cluster": r"cgasize(\d+x\d+x\d+)",
    "warps": r"warp(?:group)?size(\d+x\d+x\d+)",
    "mma": r"tensor(\d+x\d+x\d+)",
    "align_a": r"aligna(\d+)",
    "align_c": r"alignc(\d+)",
    "layout": r"[ntc]{2}",
    "result": r"n",
}
_XMMA_BYTES = {
    **dict.fromkeys(("float16", "bfloat16", "complex_int8"), 2),
    **dict.fromkeys(("float32", "tf32", "complex32", "complex_bfloat16"), 4),
    **dict.fromkeys(("float64", "complex64"), 8),
    **dict.fromkeys(("int8", "float8_e4m3", "float8_e5m2", "float8"), 1),
    "complex128": 16,
}
UNTAGGED_BYTES = 16
"""What a tensor-core kernel without an align tag needs: one TMA or 128-bit cp.async unit."""


def read_xmma(signature: Signature) -> Fields:
    """xmma kernels of cuBLAS and cuDNN.

        sm90_xmma_gemm_bf16f32_bf16f32_f32_tn_n_tilesize64x64x64_cgasize1x1x1_…_aligna4_alignc4_…
        arch      op   A C     math acc scale  layout

    The first group of types is the operands' and the result's, the second the multipliers' and
    the accumulator's. ``aligna`` and ``alignc`` are **bytes**: fp32 kernels start at 4, complex
    fp32 at 8, fp16 at 2, and ``bf16f32`` (fp32 result) pairs ``aligna2`` with ``alignc4``
    (all xmma names of libcublasLt 12.8 and 13.x). An untagged tensor-core kernel asks for 16.
    """
    end = _XMMA_END.search(signature.path)
    tokens = signature.path[: end.start() if end else None].split("_")
    details = (i for i, token in enumerate(tokens) if i > 1 and _XMMA_DETAILS.match(token))
    start = next(details, len(tokens))
    types, scale, used = _xmma_types(tokens[start:])
    words = Words(tokens[start + used :], _XMMA)
    align_a, align_c = words.get("align_a"), words.get("align_c")
    segment = end["segment"] if end else None
    return words.fields() | {
        "arch": tokens[0],
        "types": types,
        "alignment": _xmma_alignment(types, align_a, words.rest),
        "split_k": bool(end and (end["split"] or end["split2"])),
        "flags": {
            "op": "_".join(tokens[2:start]),
            "epilogue": "_".join(words.rest) or None,
            "align_a_bytes": int(align_a) if align_a else None,
            "align_c_bytes": int(align_c) if align_c else None,
            "warps": words.get("warps"),
            "scale": scale,
            "segment_k": segment == "on" if segment else None,
        },
    }


def _xmma_types(tokens: list[str]) -> tuple[Types, str | None, int]:
    """The types, the type of alpha and beta, and how many tokens name them."""
    groups = [run_together(token) for token in tokens[:3]]
    if len(groups) < 3 or not all(groups):
        kind = next((data_type(token) for token in tokens if token in ("fp32", "cp32")), None)
        return Types(kind, kind, kind, kind, kind), None, 0
    data, work, scale = groups
    b = data[1] if len(data) > 2 else data[0]
    return Types(data[0], b, work[0], work[-1], data[-1]), scale[0], 3


def _xmma_alignment(types: Types, align_a: str | None, rest: list[str]) -> int | None:
    """Elements of A; None where the type is unknown or a SIMT kernel has no tag."""
    size = _XMMA_BYTES.get(types.a or "")
    if size is None or ("ffma" in rest and align_a is None):
        return None
    if "planar" in rest:  # real and imaginary parts lie apart
        size //= 2
    return max(1, int(align_a or UNTAGGED_BYTES) // size)


def read_cta_tile(signature: Signature) -> Fields:
    """``xmma::gemm::kernel<Kernel_traits<…, Cta_tile<Ampere, 64, 64, 8, …``"""
    tile = re.search(r"Cta_tile<xmma\w*::(\w+), (\d+), (\d+), (\d+)", signature.text)
    if tile is None:
        return {}
    arch = ARCHITECTURES.get(tile[1].lower())
    return {"arch": arch, "tile": (int(tile[2]), int(tile[3]), int(tile[4]))}


def read_typed(signature: Signature) -> Fields:
    """``gemv2T_kernel_val<int, int, __half, __half, __half, float, 128, 16, 4, 4, …>``

    Element types in the order of the arguments: A, B (or x), D (or y), accumulator; then launch
    sizes that no document explains.
    """
    words = [a for a in signature.arguments if a not in ("int", "long", "unsigned int")]
    kinds = data_types([word for word in words if "<" not in word])
    if len(kinds) == 1 and not re.search("…|[.]{3}", signature.text):
        kinds *= 4
    layout = re.match(r"gemv2?([TN])_|gemmSN_([TN]{2})_", signature.base)
    a, b, out, accumulate = (*kinds, *[None] * 4)[:4]
    return {
        "types": Types(a, b, a, accumulate, out),
        "layout": layout[layout.lastindex or 0].lower() if layout else None,
        "flags": {"sizes": ",".join(map(str, signature.integers)) or None},
    }


def read_reduce(signature: Signature) -> Fields:
    """``splitKreduce_kernel<32, 16, int, partial, in, accumulator, out, …``"""
    a, b, accumulate, out = (*data_types(signature.arguments[3:]), *[None] * 4)[:4]
    return {"types": Types(a, b, None, accumulate, out), "split_k": True}


def read_letter(signature: Signature) -> Fields:
    """Older names: ``sgemm_32x32x32_NN_vec``, ``magma_hgemmEx_kernel``, ``dgemm_largek``."""
    op = re.search(r"(?:^|_|::)(gc|[shdczi])gemm", signature.path)
    tile = re.search(r"\d+x\d+(?:x\d+)?", signature.path)
    layout = re.search(r"_([NTC]{2})(?:_|$)", signature.path)
    operand, accumulator = OP_LETTERS[op[1]] if op else (None, None)
    return {
        "types": Types(operand, operand, operand, accumulator, accumulator),
        "tile": numbers(tile.group()) if tile else None,
        "layout": layout[1].lower() if layout else None,
    }
