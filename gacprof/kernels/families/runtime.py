"""What is no library's kernel: copies and sets by the driver, collectives, CUB, Thrust."""

from __future__ import annotations

import re

from gacprof.kernels.families.rule import Fields, Rule
from gacprof.kernels.signature import Signature


def read_copy(signature: Signature) -> Fields:
    """``Memcpy HtoD (Pageable -> Device)`` and ``[CUDA memcpy Host-to-Device]``."""
    words = {"host": "H", "device": "D", "array": "A", "peer": "P"}
    found = re.search(r"(?i)\b([HDAP])to([HDAP])\b|(\w+)[- ]to[- ](\w+)", signature.text)
    if found is None:
        return {}
    ends = [end for end in found.groups() if end]
    short = "to".join(words.get(end.lower(), end.upper()) for end in ends)
    return {"flags": (("direction", short),)}


RULES = (
    Rule(
        "memcpy", "cuda", "memcpy", r"(?i)^\[?(CUDA )?memcpy|^cu(da)?Memcpy", read_copy, on="text"
    ),
    Rule("memset", "cuda", "memset", r"(?i)^\[?(CUDA )?memset|^cu(da)?Memset", on="text"),
    Rule("nccl", "nccl", "collective", r"^nccl\w*(Kernel|Dev)"),
    Rule("cub", "cub", "sort", r"cub::\w*.*(Radix|Sort|Histogram)"),
    Rule("cub", "cub", "scan", r"cub::\w*.*(Scan|Select|Unique|Partition)"),
    Rule("cub", "cub", "reduction", r"cub::\w*.*Reduce"),
    Rule("cub", "cub", "other", r"\bcub::|cub_\w+::"),
    Rule("thrust", "thrust", "other", r"\bthrust::"),
    Rule("cusparse", "cusparse", "other", r"^cusparse::"),
    Rule("cusolver", "cusolver", "other", r"^cusolver"),
)
