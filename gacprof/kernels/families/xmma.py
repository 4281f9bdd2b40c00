"""xmma kernels of cuBLAS and cuDNN.

    sm90_xmma_gemm_bf16f32_bf16f32_f32_tn_n_tilesize64x64x64_cgasize1x1x1_…_aligna4_alignc4_…
    arch      op   A C     math acc scale  layout

The first group of types is the operands' and the result's, the second the multipliers' and
the accumulator's. ``aligna`` and ``alignc`` are **bytes**: fp32 kernels start at 4, complex
fp32 at 8, fp16 at 2, and ``bf16f32`` (fp32 result) pairs ``aligna2`` with ``alignc4``
(all xmma names of libcublasLt 12.8 and 13.x). An untagged tensor-core kernel asks for 16.
"""

from __future__ import annotations

import re

from gacprof.kernels.families.rule import Fields, Rule
from gacprof.kernels.kernel import Types
from gacprof.kernels.signature import Signature
from gacprof.kernels.vocabulary import (
    ARCHITECTURES,
    data_type,
    numbers,
    run_together,
    sort_tokens,
)

_END = re.compile(
    r"(?:_execute)?(?:_segment_k_(?P<segment>on|off)|_(?P<split>split_k))?"
    r"_kernel(?P<split2>_split_k)?(?:__\d+x_(?P<owner>\w+))?$"
)
_STARTS_DETAILS = re.compile(
    r"tilesize\d|(?:c?bf16|c?f16|c?f32|c?f64|tf32|ci8|i8|u8|e4m3|e5m2)(?!$)"
)
_KINDS = {
    "tile": r"tilesize\d+x\d+x\d+",
    "stages": r"stage\d+",
    "cluster": r"cgasize\d+x\d+x\d+",
    "warps": r"warp(?:group)?size\d+x\d+x\d+",
    "mma": r"tensor\d+x\d+x\d+",
    "align_a": r"aligna\d+",
    "align_c": r"alignc\d+",
    "layout": r"[ntc]{2}",
    "result": r"n",
}
BYTES = {
    **dict.fromkeys(("float16", "bfloat16", "complex_int8"), 2),
    **dict.fromkeys(("float32", "tf32", "complex32", "complex_bfloat16"), 4),
    **dict.fromkeys(("float64", "complex64"), 8),
    **dict.fromkeys(("int8", "float8_e4m3", "float8_e5m2", "float8"), 1),
    "complex128": 16,
}
UNTAGGED_BYTES = 16
"""What a tensor-core kernel without an align tag needs: one TMA or 128-bit cp.async unit."""


def read(signature: Signature) -> Fields:
    text = signature.path
    end = _END.search(text)
    tokens = (text[: end.start()] if end else text).split("_")
    start = next(
        (i for i, t in enumerate(tokens) if i > 1 and _STARTS_DETAILS.match(t)), len(tokens)
    )
    types, scale, used = _types(tokens[start:])
    found, rest = sort_tokens(tokens[start + used :], _KINDS)
    values = {kind: re.sub("^[a-z_]+", "", listed[0]) for kind, listed in found.items() if listed}
    flags = _flags("_".join(tokens[2:start]), rest, values)
    if scale:
        flags["scale"] = scale
    if end and end["segment"]:
        flags["segment_k"] = end["segment"] == "on"
    return {
        "arch": tokens[0],
        "types": types,
        "tile": numbers(values["tile"]) if "tile" in values else None,
        "stages": int(values["stages"]) if "stages" in values else None,
        "cluster": numbers(values["cluster"]) if "cluster" in values else None,
        "mma": numbers(values["mma"]) if "mma" in values else None,
        "alignment": _alignment(types, values, rest),
        "layout": found["layout"][0] if found["layout"] else None,
        "split_k": bool(end and (end["split"] or end["split2"])),
        "flags": tuple(sorted(flags.items())),
    }


def _types(tokens: list[str]) -> tuple[Types, str | None, int]:
    """The types, the type of alpha and beta, and how many tokens name them."""
    groups = [run_together(token) for token in tokens[:3]]
    if len(groups) < 3 or not all(groups):
        kind = next((data_type(token) for token in tokens if token in ("fp32", "cp32")), None)
        return Types(kind, kind, kind, kind, kind), None, 0
    data, work, scale = groups
    b = data[1] if len(data) > 2 else data[0]
    return Types(data[0], b, work[0], work[-1], data[-1]), scale[0], 3


def _flags(op: str, rest: list[str], values: dict[str, str]) -> dict[str, str | int | bool]:
    flags: dict[str, str | int | bool] = {"op": op}
    if rest:
        flags["epilogue"] = "_".join(rest)
    for name in ("align_a", "align_c"):
        if name in values:
            flags[f"{name}_bytes"] = int(values[name])
    if "warps" in values:
        flags["warps"] = values["warps"]
    return flags


def _alignment(types: Types, values: dict[str, str], rest: list[str]) -> int | None:
    """Elements of A; None where the type is unknown or a SIMT kernel has no tag."""
    size = BYTES.get(types.a or "")
    if size is None or ("ffma" in rest and "align_a" not in values):
        return None
    if "planar" in rest:  # real and imaginary parts lie apart
        size //= 2
    return max(1, int(values.get("align_a", UNTAGGED_BYTES)) // size)


_TEMPLATE_TILE = re.compile(r"Cta_tile<xmma\w*::(\w+), (\d+), (\d+), (\d+)")


def read_template(signature: Signature) -> Fields:
    """``xmma::gemm::kernel<Kernel_traits<…, Cta_tile<Ampere, 64, 64, 8, …``"""
    tile = _TEMPLATE_TILE.search(signature.text)
    if tile is None:
        return {}
    m, n, k = map(int, tile.groups()[1:])
    return {"arch": ARCHITECTURES.get(tile.group(1).lower()), "tile": (m, n, k)}


RULES = (
    Rule("xmma", "cudnn", "convolution", r"^sm\d+_xmma_(?:fprop|dgrad|wgrad)\w*", read),
    Rule("xmma", "cublas", "gemm", r"^sm\d+_xmma_(?:\w+_)?gemm(?:_|$)", read),
    Rule("xmma", "cublas", "blas3", r"^sm\d+_xmma_\w+", read),
    Rule("xmma", "cublas", "split_k_reduce", r"^xmma\w*::gemm::split_k_kernel", read_template),
    Rule("xmma", "cublas", "gemm", r"^xmma\w*::gemm::kernel$", read_template),
    Rule("xmma", "cublas", "blas3", r"^xmma\w*::gemm::kernel_\w+", read_template),
)
