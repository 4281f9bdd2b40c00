"""Readers of names that are words joined by ``_``: what each word stands for, by family."""

from __future__ import annotations

import re

from gacprof.kernels.kernel import (
    ARCHITECTURES,
    ELEMENT_BYTES,
    MMA,
    OP_LETTERS,
    TMA_BYTES,
    Fields,
    Types,
    Words,
    data_type,
    data_types,
    first,
    numbers,
    run_together,
)
from gacprof.kernels.signature import Signature

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
    words = Words(signature.words[1:], _NVJET)
    letters = words.rest.pop(0) if words.rest else ""
    known = [NVJET_TYPES.get(letter) for letter in letters]
    types = Types()
    if len(known) >= 3:
        b = known[1] if len(known) > 3 else known[0]
        types = Types(known[0], b, known[0], known[-2], known[-1])
    flags = dict.fromkeys(words.rest, True) | {
        "c_type": known[2] if len(known) == 5 else None,
        "raster": words.get("raster"),
        "warp_tile": words.get("triple", 1),
    }
    split_k = any(word.lower().startswith("splitk") for word in words.rest)
    return words.fields() | {"types": types, "split_k": split_k, "flags": flags}


_PRODUCT = "gemm|gemv|trmm|syrk|herk|symm|hemm|cudnn|imma"
_OPERATION = re.compile(
    rf"(gc|gz|[a-z])(?:(\d+x\d+x\d+|\d*)(bf16|f16|tf32)?(?:{_PRODUCT})(?:3m)?|(\d+x\d+x\d+))"
)
NATIVE_OP = r"(?:gc|gz|[a-z])\d*(?:gemm|cudnn|imma)(?:3m)?"
_NAMED = {
    "pair": r"\d+x\d+",
    "triple": r"\d+x\d+x\d+",
    "number": r"\d+",
    "sliced": r"sliced(\d+x\d+)",
    "alignment": r"(?:align|ldg)(\d+)",
    "products": r"\d+xbf16gemm",
    "layout": r"[ntchulNTC]{2,3}",
    "marker": r"stages",
}


def read_named(signature: Signature) -> Fields:
    """Kernels of cuBLAS's assembler, of CUTLASS 2 and of CUTLASS 3, and cuDNN's older ones.

        ampere_fp16_s16816gemm_fp16_128x64_sliced1x2_ldg8_relu_f2f_stages_64x5_tn
        cutlass_80_tensorop_f16_s16816gemm_relu_f16_128x128_64x3_tn_align8
        arch       unit   out   operation       in  M×N      K×stages   rows ÷ (elements)
        cutlass3x_sm100_tensorop_s128x128x16gemm_f16_f16_f32_f16_f16_128x128x64_2x1x1_0_tnn_align8_1sm
                                 operation (MMA) A   B   acc C   D   tile       cluster stages

    No ``out`` means the accumulator's type; no ``in`` the operation's own (``sgemm``: fp32).
    ``ldg8`` loads 8 elements at a time, so rows must be multiples of 8.
    """
    tokens = signature.words
    cutlass = re.fullmatch(r"cutlass(3x)?", tokens[0])
    arch = ARCHITECTURES.get(tokens[0])
    if cutlass and len(tokens) > 1 and re.fullmatch(r"(sm)?\d+[af]?", tokens[1]):
        arch = f"sm{tokens[1].removeprefix('sm')}"
    ops = ((i, found) for i, token in enumerate(tokens) if (found := _OPERATION.fullmatch(token)))
    at, op = next(ops, (0, None))
    if op is None:
        return {"arch": arch}
    before, words = tokens[2 if cutlass else 1 : at], Words(tokens[at + 1 :], _NAMED)
    operand, accumulator = OP_LETTERS.get(op[1], (None, None))
    rest = [(word, word == "void" or data_type(word) is not None) for word in words.rest]
    typed = [word for word, is_type in rest if is_type][: 5 if cutlass and cutlass[1] else 1]
    for word in typed:
        words.rest.remove(word)
    kinds = [data_type(word) for word in typed]
    a = b = (kinds or [None])[0] or operand
    out = next(iter(data_types(before)), accumulator)
    if len(kinds) == 5:
        b, accumulator, out = kinds[1] or a, kinds[2], kinds[4]
    products, shape = words.get("products"), op[2] or op[4] or ""
    tensor = bool(shape) and "tensorop" in before
    made = words.fields()
    if cluster := words.get("triple", 1):
        made["cluster"] = numbers(cluster)
    return made | {
        "arch": arch,
        "types": Types(a, b, _math(a, products or op[3], tensor), accumulator, out),
        "mma": numbers(shape) if "x" in shape else MMA.get(shape),
        "split_k": "splitK" in words.rest,
        "flags": {
            "op": "_".join(filter(None, (tokens[at], products))),
            "unit": "_".join(t for t in before if not data_type(t)) if cutlass else None,
            "sliced": words.get("sliced"),
            "epilogue": "_".join(words.rest) or None,
        },
    }


def _math(operand: str | None, tag: str | None, tensor: bool) -> str | None:
    """fp32 operands on tensor cores are rounded: to the tag's type, else to tf32."""
    if tag and tag.endswith("xbf16gemm"):
        return f"bfloat16x{tag.removesuffix('xbf16gemm')}"
    if tag:
        return data_type(tag)
    return "tf32" if operand == "float32" and tensor else operand


_XMMA_END = re.compile(
    r"(?:_execute)?(?:_segment_k_(?P<segment>on|off)|_(?P<split>split_k))?"
    r"_kernel(?P<split2>_split_k)?(?:__\d+x_\w+)?$"
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
    types, scale = _xmma_types(tokens[start:])
    words = Words(tokens[start + (3 if scale else 0) :], _XMMA)
    align_a, align_c = words.get("align_a"), words.get("align_c")
    size = ELEMENT_BYTES.get(types.a or "")
    if size and "planar" in words.rest:  # real and imaginary parts lie apart
        size //= 2
    tagged = align_a or "ffma" not in words.rest  # kernels without tensor cores may lack the tag
    segment = end["segment"] if end else None
    return words.fields() | {
        "arch": tokens[0],
        "types": types,
        "alignment": max(1, int(align_a or TMA_BYTES) // size) if size and tagged else None,
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


def _xmma_types(tokens: list[str]) -> tuple[Types, str | None]:
    """The types, and that of alpha and beta where three words name them all."""
    groups = [run_together(token) for token in tokens[:3]]
    if len(groups) < 3 or not all(groups):
        kind = next((data_type(token) for token in tokens if token in ("fp32", "cp32")), None)
        return Types(kind, kind, kind, kind, kind), None
    data, work, scale = groups
    b = data[1] if len(data) > 2 else data[0]
    return Types(data[0], b, work[0], work[-1], data[-1]), scale[0]


def read_letter(signature: Signature) -> Fields:
    """Older names: ``sgemm_32x32x32_NN_vec``, ``magma_hgemmEx_kernel``, ``dgemm_largek``."""
    op = first(r"(?:^|_|::)(gc|[shdczi])gemm", signature.path)
    operand, accumulator = OP_LETTERS[op] if op else (None, None)
    return {
        "types": Types(operand, operand, operand, accumulator, accumulator),
        "tile": first(r"\d+x\d+(?:x\d+)?", signature.path, numbers),
        "layout": first(r"_([NTC]{2})(?:_|$)", signature.path, str.lower),
    }


_ATTENTION = {
    "arch": r"sm\d+[af]?",
    "template": r"k(\d+)",  # the largest head_dim
    "tile": r"\d+x\d+",
    "triple": r"\d+x\d+x\d+",
    "cluster": r"cga(\d+x\d+x\d+)",
    "type": r"f16|bf16|f32|e4m3|e5m2|fp8",
    "number": r"\d+",
    "kernel": r"kernel\d+",
}


def read_efficient(signature: Signature) -> Fields:
    """``fmha_cutlassF_f16_aligned_64x128_rf_sm80``; B is backward."""
    words = Words(signature.words[2:], _ATTENTION)
    kind = data_type(words.get("type") or "")
    types = Types(kind, kind, kind, "float32", kind)
    return words.fields() | {"types": types, "flags": dict.fromkeys(words.rest, True)}


def read_cudnn(signature: Signature) -> Fields:
    """``cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_…``

    Rows of q by rows of k by head_dim, then warps: so in the sources of the two kernels of
    this name that libtorch_cuda 2.13 carries for run-time compilation.
    """
    tokens = signature.words
    words = Words(tokens[tokens.index("sdpa") + 1 if "sdpa" in tokens else 0 :], _ATTENTION)
    shape, knob = numbers(words.get("triple") or "0x0x0"), words.get("number")
    kind = data_type(words.get("type") or "")
    return words.fields() | {
        "types": Types(kind, kind, kind, "float32"),
        "tile": shape[:2] if any(shape) else None,
        "template": shape[2] if any(shape) else None,
        "stages": None,
        "flags": dict.fromkeys((word for word in words.rest if word != "knob"), True)
        | {
            "knob": int(knob) if "knob" in words.rest and knob else None,
            "warps": words.get("triple", 1),
        },
    }


def read_flash4(signature: Signature) -> Fields:
    """``kernel_cutlass_kernel_flash_attncuteflash_fwd_sm100FlashAttentionForwardSm100_object_…``

    Written in CuTe's Python: the class tells the architecture, the first operand its type
    (``tensorptrbf16gmem…``, in some versions); newer versions put ``bf16_head_dim128_tile128x128``
    in front of it all.
    """
    path = signature.path
    word = first(r"tensorptr(b?f16|f8\w*?)gmem", path) or first(r"_(bf16|fp16)_", path) or ""
    kind = data_type(word)
    return {
        "arch": first(r"(?:Forward|Backward)\w*?(Sm\d+)", path, str.lower),
        "types": Types(kind, kind, kind, "float32") if kind else Types(),
        "template": first(r"_head_dim(\d+)(?=_)", path, int),
        "tile": first(r"_tile(\d+x\d+)(?=_)", path, numbers),
    }


def read_triton(signature: Signature) -> Fields:
    """``triton_poi_fused_add_mul_0``, as torch.compile writes them: poi is pointwise, red a
    looped and per a persistent reduction, tem a template (GEMM, attention), for a foreach.

    Triton before 3.0 appended how it specialised each argument, ``matmul_kernel_0d1d2d3de4c``:
    d divisible by 16, e by 8, c equal to 1.
    """
    if found := re.match(r"^triton_([a-z]+)_(?:fused_?)?(\w*?)_?(\d*)$", signature.path):
        return {"flags": {"ops": found[2].strip("_") or None}}
    if found := re.search(r"_((?:\d+d?c?e?){2,})$", signature.path):
        total, aligned = (len(re.findall(part, found[1])) for part in (r"\d+", r"\d+d"))
        return {"flags": {"arguments": total, "divisible_by_16": aligned}}
    return {}
