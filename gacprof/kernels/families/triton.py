"""Triton kernels: those that torch.compile writes, and hand-written ones where a name tells.

``triton_poi_fused_add_mul_0``: poi is pointwise, red a looped and per a persistent reduction,
tem a template (GEMM, attention), for a foreach. Triton before 3.0 appended how it specialised
each argument, ``matmul_kernel_0d1d2d3de4c``: d divisible by 16, e by 8, c equal to 1.
"""

from __future__ import annotations

import re

from gacprof.kernels.families.rule import Fields, Rule
from gacprof.kernels.signature import Signature

_INDUCTOR = re.compile(r"^triton_([a-z]+)_(?:fused_?)?(\w*?)_?(\d*)$")
_SPECIALISED = re.compile(r"_(?:\d+d?c?e?){2,}$")


def read_inductor(signature: Signature) -> Fields:
    found = _INDUCTOR.match(signature.path)
    flags: dict[str, str | int | bool] = {}
    if found and found.group(2).strip("_"):
        flags["ops"] = found.group(2).strip("_")
    return {"flags": tuple(flags.items())}


def read_specialised(signature: Signature) -> Fields:
    found = _SPECIALISED.search(signature.path)
    suffix = found.group()[1:] if found else ""
    aligned = len(re.findall(r"\d+d", suffix))
    total = len(re.findall(r"\d+", suffix))
    return {"flags": (("arguments", total), ("divisible_by_16", aligned))}


def _inductor(role: str, pattern: str) -> Rule:
    return Rule("inductor", "triton", role, pattern, read_inductor)


RULES = (
    _inductor("attention", r"^triton_(tem|flex)\w*(attention|flex)"),
    _inductor("gemm", r"^triton_(tem\w*mm|mm|bmm|addmm)"),
    _inductor("convolution", r"^triton_tem\w*conv"),
    _inductor("template", r"^triton_tem"),
    _inductor("reduction", r"^triton_(red|per|spl|mix)_"),
    _inductor("pad", r"^triton_poi_fused_(constant_pad_nd|pad)"),
    _inductor("cat", r"^triton_poi_fused_cat(_\d+)?$"),
    _inductor("copy", r"^triton_poi_fused_(_to_copy|clone|copy)(_\d+)?$"),
    _inductor("elementwise", r"^triton_(poi|for|unk)_"),
    _inductor("other", r"^triton_[a-z0-9_]+$"),
    Rule(
        "triton", "triton", "other", r"^[a-z_]\w*_0d?c?e?1d?c?e?(?:\d+d?c?e?)*$", read_specialised
    ),
    Rule("probe", "triton", "copy", r"^gacprof_\w*copy\w*$"),
    Rule("probe", "triton", "gemm", r"^gacprof_\w*gemm\w*$"),
    Rule("probe", "triton", "reduction", r"^gacprof_\w*sum\w*$"),
)
