"""CUTLASS kernels: cuBLAS's and those that PyTorch and others compile themselves.

Named instances, CUTLASS 2 and 3:

    cutlass_80_tensorop_f16_s16816gemm_relu_f16_128x128_64x3_tn_align8
            arch        out op         epi  in  M×N     K×stages  elements
    cutlass3x_sm100_tensorop_s128x128x16gemm_f16_f16_f32_f16_f16_128x128x64_2x1x1_0_tnn_align8_1sm
              arch           op  (MMA)       A   B   acc C   D   tile       cluster stages

Unnamed ones are read from their template arguments.
"""

from __future__ import annotations

import re

from gacprof.kernels.families.rule import Fields, Rule
from gacprof.kernels.kernel import Types
from gacprof.kernels.signature import Signature, split_arguments
from gacprof.kernels.vocabulary import (
    MMA,
    OP_LETTERS,
    data_type,
    data_types,
    numbers,
    sort_tokens,
)

_OP2 = re.compile(r"(gc|gz|[a-z])(\d*)(bf16|f16|tf32)?(gemm|gemv|trmm|syrk|herk|symm|hemm)")
_OP3 = re.compile(r"(gc|[a-z])((?:\d+x\d+x)?\d*)(\d+xbf16|tf32|f16|bf16)?(?:gemm)?")
_KINDS2 = {"pair": r"\d+x\d+", "layout": r"[ntchul]{2}", "align": r"align\d+"}
_KINDS3 = {
    "triple": r"\d+x\d+x\d+",
    "number": r"\d+",
    "layout": r"[ntch]{3}",
    "align": r"align\d+",
}


def read_named2(signature: Signature) -> Fields:
    tokens = signature.path.split("_")
    at = next((i for i, token in enumerate(tokens) if _OP2.fullmatch(token)), None)
    arch = f"sm{tokens[1]}" if tokens[1].isdigit() else None
    if at is None:
        return {"arch": arch}
    op = _OP2.fullmatch(tokens[at])
    letter, digits, math = op.group(1, 2, 3) if op else ("s", "", None)
    found, rest = sort_tokens(tokens[at + 1 :], _KINDS2)
    operands, accumulator = OP_LETTERS.get(letter, (None, None))
    given = data_types(rest)
    operand = given[0] if given else operands
    flags: dict[str, str | int | bool] = {
        "op": tokens[at],
        "unit": "_".join(t for t in tokens[2:at] if not data_type(t)),
    }
    if epilogue := "_".join(token for token in rest if not data_type(token)):
        flags["epilogue"] = epilogue
    tile, stages = _tile2([numbers(pair) for pair in found["pair"]])
    return {
        "arch": arch,
        "types": Types(
            operand,
            operand,
            _math(operand, math, digits, "tensorop" in tokens),
            accumulator,
            next(iter(data_types(tokens[2:at])), accumulator),
        ),
        "tile": tile,
        "stages": stages,
        "mma": MMA.get(digits),
        "alignment": int(found["align"][-1][5:]) if found["align"] else None,
        "layout": found["layout"][-1] if found["layout"] else None,
        "flags": tuple(sorted(flags.items())),
    }


def _tile2(pairs: list[tuple[int, ...]]) -> tuple[tuple[int, ...] | None, int | None]:
    if len(pairs) < 2:
        return (pairs[0] if pairs else None), None
    return (*pairs[0], pairs[1][0]), pairs[1][1]


def _math(operand: str | None, tag: str | None, digits: str, tensor: bool) -> str | None:
    """fp32 operands on tensor cores are rounded: to the tag's type, else to tf32."""
    if tag:
        return data_type(tag)
    return "tf32" if operand == "float32" and tensor and digits else operand


def read_named3(signature: Signature) -> Fields:
    tokens = signature.path.split("_")
    at = 3
    op = _OP3.fullmatch(tokens[at]) if len(tokens) > at else None
    if op is None:
        return {"arch": tokens[1] if tokens[1].startswith("sm") else None}
    letter, shape, math = op.group(1, 2, 3)
    if len(tokens) > at + 1 and (split := re.fullmatch(r"(\d+xbf16)gemm", tokens[at + 1])):
        at, math = at + 1, split.group(1)  # fp32 from several bf16 products
    found, rest = sort_tokens(tokens[at + 1 :], _KINDS3)
    types = [data_type(token) for token in rest if data_type(token) or token == "void"][:5]
    triples = [numbers(triple) for triple in found["triple"]]
    flags: dict[str, str | int | bool] = {"op": "_".join(tokens[3 : at + 1]), "unit": tokens[2]}
    if epilogue := "_".join(_after_types(rest, len(types))):
        flags["epilogue"] = epilogue
    a, b, accumulator, _, out = (*types, *[None] * 5)[:5]
    a = a or OP_LETTERS.get(letter, (None, None))[0]
    return {
        "arch": tokens[1],
        "types": Types(a, b or a, _math3(a, math, tokens[2]), accumulator, out),
        "tile": triples[0] if triples else None,
        "cluster": triples[1] if len(triples) > 1 else None,
        "stages": int(found["number"][0]) or None if found["number"] else None,
        "mma": numbers(shape) if "x" in shape else MMA.get(shape),
        "alignment": int(found["align"][-1][5:]) if found["align"] else None,
        "layout": found["layout"][-1] if found["layout"] else None,
        "flags": tuple(sorted(flags.items())),
    }


def _math3(operand: str | None, tag: str | None, unit: str) -> str | None:
    if tag and tag.endswith("xbf16"):
        return f"bfloat16x{tag.removesuffix('xbf16')}"
    if tag:
        return data_type(tag)
    return "tf32" if operand == "float32" and unit == "tensorop" else operand


def _after_types(rest: list[str], count: int) -> list[str]:
    kept, seen = [], 0
    for token in rest:
        if seen < count and (data_type(token) or token == "void"):
            seen += 1
        else:
            kept.append(token)
    return kept


def read_template3(signature: Signature) -> Fields:
    """``GemmUniversal<shape, CollectiveMma<MainloopSm90…<stages, cluster, …>, tile, type, …``"""
    body = ",".join(signature.arguments)
    arch = re.search(r"Mainloop(?:Sm|SM)(\d+)", body)
    stages = re.search(r"Mainloop\w+<\s*(\d+)", body)
    shapes = [
        tuple(map(int, re.findall(r"(?:C|constant)<(?:int,\s*)?(\d+)>", found)))
        for found in re.findall(
            r"tuple<((?:\s*cute::(?:C|constant)<(?:int,\s*)?\d+>\s*,?)+)\s*>", body
        )
    ]
    shapes = [shape for shape in shapes if len(shape) == 3]
    words = split_arguments(re.sub(r"[<>]", ",", body))
    kinds = [kind for word in words if "_t" in word and (kind := data_type(word))]
    return {
        "arch": f"sm{arch.group(1)}" if arch else None,
        "types": Types(kinds[0], kinds[1] if len(kinds) > 1 else None) if kinds else Types(),
        "cluster": shapes[0] if shapes else None,
        "tile": shapes[1] if len(shapes) > 1 else None,
        "stages": int(stages.group(1)) if stages else None,
    }


def read_template2(signature: Signature) -> Fields:
    """``cutlass::gemm::kernel::Gemm<…MmaMultistage<GemmShape<128, 128, 32>, …``"""
    body = ",".join(signature.arguments)
    shapes = [tuple(map(int, s)) for s in re.findall(r"GemmShape<(\d+), ?(\d+), ?(\d+)>", body)]
    arch = re.search(r"arch::Sm(\d+)", body)
    kinds = data_types(re.findall(r"cutlass::(\w+_t)\b", body))
    access = re.search(r"(?:AlignedArray|Array)<cutlass::\w+_t, ?(\d+)", body)
    return {
        "arch": f"sm{arch.group(1)}" if arch else None,
        "types": Types(kinds[0], kinds[0]) if kinds else Types(),
        "tile": shapes[0] if shapes else None,
        "mma": shapes[2] if len(shapes) > 2 else None,
        "alignment": int(access.group(1)) if access else None,
    }


RULES = (
    Rule("cutlass3", "cutlass", "gemm", r"^cutlass[3-9]x_sm\d+", read_named3),
    Rule("cutlass2", "cutlass", "gemm", r"^cutlass_\d+_\w*gemm", read_named2),
    Rule(
        "cutlass2", "cutlass", "blas3", r"^cutlass_\d+_\w+(trmm|syrk|herk|symm|hemm)", read_named2
    ),
    Rule("cutlass2", "cutlass", "gemm", r"^cutlass_(simt|tensorop|wmma)_\w*gemm"),
    Rule("cutlass2", "cutlass", "convolution", r"^cutlass_\w*(fprop|dgrad|wgrad)"),
    Rule("cutlass2", "cutlass", "gemm", r"^cutlass_\d+_\w+"),
    Rule("cutlass3", "cutlass", "gemm", r"^cutlass::gemm::kernel::GemmUniversal$", read_template3),
    Rule("cutlass2", "cutlass", "convolution", r"^cutlass::conv::", read_template2),
    Rule("cutlass2", "cutlass", "split_k_reduce", r"^cutlass::reduction::kernel::ReduceSplitK"),
    Rule("cutlass2", "cutlass", "gemm", r"^cutlass\w*::gemm::", read_template2),
    Rule("cutlass", "cutlass", "gemm", r"^cutlass::(Kernel2?|device_kernel)$"),
    Rule("cutlass", "cutlass", "other", r"^cutlass::"),
)
