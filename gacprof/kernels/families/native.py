"""cuBLAS's own assembler kernels, named after the architecture: ``ampere_s16816gemm_…``.

    ampere_fp16_s16816gemm_fp16_128x64_sliced1x2_ldg8_relu_f2f_stages_64x5_tn
    arch   out  op        in   tile M×N          align         K×stages    layout

No ``out`` means the accumulator's type; no ``in`` the operation's own (``sgemm``: fp32).
``ldg8`` loads 8 elements at a time, so rows must be multiples of 8. cuDNN's older
convolutions (``volta_scudnn_…``) follow the same grammar.
"""

from __future__ import annotations

import re

from gacprof.kernels.families.rule import Fields, Rule
from gacprof.kernels.kernel import Types
from gacprof.kernels.signature import Signature
from gacprof.kernels.vocabulary import (
    ARCHITECTURES,
    MMA,
    OP_LETTERS,
    data_type,
    data_types,
    numbers,
    sort_tokens,
)

_ARCH = "|".join(ARCHITECTURES)
_OP = r"(gc|gz|[a-z])(\d*)(?:gemm|cudnn|imma)(?:3m)?"
_KINDS = {
    "pair": r"\d+x\d+",
    "tile": r"\d+x\d+x\d+",
    "sliced": r"sliced\d+x\d+",
    "load": r"ldg\d+",
    "layout": r"[ntcNTC]{2}",
    "marker": r"stages",
}


def read(signature: Signature) -> Fields:
    tokens = signature.path.split("_")
    at = next(i for i, token in enumerate(tokens) if re.fullmatch(_OP, token))
    op = re.fullmatch(_OP, tokens[at])
    letter, digits = op.group(1, 2) if op else ("s", "")
    found, rest = sort_tokens(tokens[at + 1 :], _KINDS)
    operands, accumulator = OP_LETTERS.get(letter, (None, None))
    given = data_type(rest[0]) if rest else None
    operand = given or operands
    out = next(iter(data_types(tokens[1:at])), accumulator)
    tile, stages = _tile(found)
    flags: dict[str, str | int | bool] = {"op": tokens[at]}
    if found["sliced"]:
        flags["sliced"] = found["sliced"][0].removeprefix("sliced")
    rest = [token for token in rest if not data_type(token)] if given else rest
    if rest:
        flags["epilogue"] = "_".join(rest)
    return {
        "arch": ARCHITECTURES.get(tokens[0]),
        "types": Types(operand, operand, operand, accumulator, out),
        "tile": tile,
        "stages": stages,
        "mma": MMA.get(digits),
        "alignment": int(found["load"][0][3:]) if found["load"] else None,
        "layout": found["layout"][-1].lower() if found["layout"] else None,
        "split_k": "splitK" in rest,
        "flags": tuple(sorted(flags.items())),
    }


def _tile(found: dict[str, list[str]]) -> tuple[tuple[int, ...] | None, int | None]:
    """(M, N) or (M, N, K), and the stages."""
    if found["tile"]:
        return numbers(found["tile"][0]), None
    if not found["pair"]:
        return None, None
    tile = numbers(found["pair"][0])
    if found["marker"] and len(found["pair"]) > 1:
        depth, stages = numbers(found["pair"][1])
        return (*tile, depth), stages
    return tile, None


RULES = (
    Rule("native_conv", "cudnn", "convolution", rf"^(?:{_ARCH})_(\w+_)?[a-z]{{1,2}}\d*cudnn", read),
    Rule("native", "cublas", "gemm", rf"^(?:{_ARCH})_(\w+_)?{_OP}(_|$)", read),
    Rule("native", "cublas", "gemm", rf"^{_OP}_\d+x\d+", read),
)
