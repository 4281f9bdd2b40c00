"""Reading the names of CUTLASS kernels: cuBLAS's, and those that others compile themselves."""

from __future__ import annotations

import re

from gacprof.kernels.cublas_names import MMA, OP_LETTERS, Fields
from gacprof.kernels.kernel import Types
from gacprof.kernels.name_parts import (
    Signature,
    Words,
    data_type,
    data_types,
    numbers,
    split_arguments,
)

_OP2 = re.compile(r"(gc|gz|[a-z])(\d*)(bf16|f16|tf32)?(gemm|gemv|trmm|syrk|herk|symm|hemm)")
_OP3 = re.compile(r"(gc|[a-z])((?:\d+x\d+x)?\d*)(\d+xbf16|tf32|f16|bf16)?(?:gemm)?")
_KINDS2 = {"pair": r"\d+x\d+", "layout": r"[ntchul]{2}", "alignment": r"align(\d+)"}
_KINDS3 = {
    "triple": r"\d+x\d+x\d+",
    "number": r"\d+",
    "layout": r"[ntch]{3}",
    "alignment": r"align(\d+)",
}


def read_cutlass2(signature: Signature) -> Fields:
    """Named instances of CUTLASS 2.

    cutlass_80_tensorop_f16_s16816gemm_relu_f16_128x128_64x3_tn_align8
            arch        out op         epi  in  M×N     K×stages  elements
    """
    tokens = signature.path.split("_")
    arch = f"sm{tokens[1]}" if tokens[1].isdigit() else None
    ops = [(i, op) for i, token in enumerate(tokens) if (op := _OP2.fullmatch(token))]
    if not ops:
        return {"arch": arch}
    at, op = ops[0]
    words = Words(tokens[at + 1 :], _KINDS2)
    operand, accumulator = OP_LETTERS.get(op[1], (None, None))
    operand = next(iter(data_types(words.rest)), operand)
    out = next(iter(data_types(tokens[2:at])), accumulator)
    tensor = bool(op[2]) and "tensorop" in tokens
    made, pairs = words.fields(), words.shapes("pair")
    if len(pairs) > 1:
        made |= {"tile": (*pairs[0], pairs[1][0]), "stages": pairs[1][1]}
    elif pairs:
        made["tile"] = pairs[0]
    return made | {
        "arch": arch,
        "types": Types(operand, operand, _math(operand, op[3], tensor), accumulator, out),
        "mma": MMA.get(op[2]),
        "flags": {
            "op": tokens[at],
            "unit": "_".join(token for token in tokens[2:at] if not data_type(token)),
            "epilogue": "_".join(t for t in words.rest if not data_type(t)) or None,
        },
    }


def read_cutlass3(signature: Signature) -> Fields:
    """Named instances of CUTLASS 3.

    cutlass3x_sm100_tensorop_s128x128x16gemm_f16_f16_f32_f16_f16_128x128x64_2x1x1_0_tnn_align8_1sm
              arch           op  (MMA)       A   B   acc C   D   tile       cluster stages
    """
    tokens = signature.path.split("_")
    at = 3
    op = _OP3.fullmatch(tokens[at]) if len(tokens) > at else None
    if op is None:
        return {"arch": tokens[1] if tokens[1].startswith("sm") else None}
    letter, shape, math = op.group(1, 2, 3)
    if len(tokens) > at + 1 and (split := re.fullmatch(r"(\d+xbf16)gemm", tokens[at + 1])):
        at, math = at + 1, split[1]  # fp32 from several bf16 products
    words = Words(tokens[at + 1 :], _KINDS3)
    named = [i for i, token in enumerate(words.rest) if data_type(token) or token == "void"][:5]
    epilogue = "_".join(token for i, token in enumerate(words.rest) if i not in named)
    a, b, accumulate, _, out = (*(data_type(words.rest[i]) for i in named), *[None] * 5)[:5]
    a = a or OP_LETTERS.get(letter, (None, None))[0]
    triples, stages = words.shapes("triple"), words.get("number")
    return words.fields() | {
        "arch": tokens[1],
        "types": Types(a, b or a, _math(a, math, tokens[2] == "tensorop"), accumulate, out),
        "tile": triples[0] if triples else None,
        "cluster": triples[1] if len(triples) > 1 else None,
        "stages": int(stages or 0) or None,
        "mma": numbers(shape) if "x" in shape else MMA.get(shape),
        "flags": {
            "op": "_".join(tokens[3 : at + 1]),
            "unit": tokens[2],
            "epilogue": epilogue or None,
        },
    }


def _math(operand: str | None, tag: str | None, tensor: bool) -> str | None:
    """fp32 operands on tensor cores are rounded: to the tag's type, else to tf32."""
    if tag and tag.endswith("xbf16"):
        return f"bfloat16x{tag.removesuffix('xbf16')}"
    if tag:
        return data_type(tag)
    return "tf32" if operand == "float32" and tensor else operand


def read_template2(signature: Signature) -> Fields:
    """``cutlass::gemm::kernel::Gemm<…MmaMultistage<GemmShape<128, 128, 32>, …``"""
    body = ",".join(signature.arguments)
    shapes = [tuple(map(int, s)) for s in re.findall(r"GemmShape<(\d+), ?(\d+), ?(\d+)>", body)]
    arch = re.search(r"arch::Sm(\d+)", body)
    kinds = data_types(re.findall(r"cutlass::(\w+_t)\b", body))
    access = re.search(r"(?:AlignedArray|Array)<cutlass::\w+_t, ?(\d+)", body)
    return {
        "arch": f"sm{arch[1]}" if arch else None,
        "types": Types(kinds[0], kinds[0]) if kinds else Types(),
        "tile": shapes[0] if shapes else None,
        "mma": shapes[2] if len(shapes) > 2 else None,
        "alignment": int(access[1]) if access else None,
    }


def read_template3(signature: Signature) -> Fields:
    """``GemmUniversal<shape, CollectiveMma<MainloopSm90…<stages, cluster, …>, tile, type, …``"""
    body = ",".join(signature.arguments)
    arch = re.search(r"Mainloop(?:Sm|SM)(\d+)", body)
    stages = re.search(r"Mainloop\w+<\s*(\d+)", body)
    size = r"cute::(?:C|constant)<(?:int,\s*)?(\d+)>\s*"
    found = re.findall(rf"tuple<\s*{size},\s*{size},\s*{size},?\s*>", body)
    shapes = [tuple(map(int, shape)) for shape in found]
    words = split_arguments(re.sub(r"[<>]", ",", body))
    kinds = data_types([word for word in words if "_t" in word])
    return {
        "arch": f"sm{arch[1]}" if arch else None,
        "types": Types(kinds[0], kinds[1] if len(kinds) > 1 else None) if kinds else Types(),
        "cluster": shapes[0] if shapes else None,
        "tile": shapes[1] if len(shapes) > 1 else None,
        "stages": int(stages[1]) if stages else None,
    }
