"""head_dim in kernels that engines bring: what a size runs as, and whether a larger one is faster.

PyTorch's own backends are in :mod:`gacprof.rules.attention`. Here are FlashAttention-3 and 4, those
that Triton compiles, and TensorRT-LLM's, with the kernels that engines took for vision towers where
others measured them (aiconfigurator-core 0.12.0, tables encoder_attention).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from gacprof.core.files import Record
from gacprof.rules.target import Rule

ELSEWHERE = "aiconfigurator-core 0.12.0, encoder_attention: vllm 0.24.0, sglang 0.5.14, trtllm rc20"
FA2 = Rule(
    "runs as the next of 32, 64, 96, 128, 160, 192 and 256, with bounds checks where it is none; "
    "72 took 1.02 to 1.04 of what 80 did",
    f"{ELSEWHERE}; templates of flash-attn 2.8",
    "elsewhere",
)
FA3 = Rule(
    "runs as the next of 64, 96, 128, 192 and 256; 72 took 1.03 to 1.10 of what 80 did",
    f"names of kernels in fa3-fwd; {ELSEWHERE}",
    "binary",
)
FA4 = Rule(
    "multiples of 8 are padded to 16; on Blackwell 136 to 248 are refused, but 192 beside values "
    "of 128; 72 took 0.93 to 1.34 of what 80 did",
    f"source of flash-attn-4; {ELSEWHERE}",
    "code",
)
TRITON = Rule(
    "runs as the next power of two, and what is no multiple of 16 is loaded by single elements: 72 "
    "took 1.36 (L40S) to 2.80 (B300) of what 80 did",
    f"SASS compiled for five architectures, Triton 3.7.1; {ELSEWHERE}",
    "elsewhere",
)
TRTLLM = Rule(
    "on Blackwell 72 took 3.0 to 3.4 of what 80 did, elsewhere as long; other sizes are not known",
    ELSEWHERE,
    "elsewhere",
)
BLACKWELL = ("sm100", "sm103")

Verdict = Literal["safe", "misaligned", "undecided", "refused"]


@dataclass(frozen=True)
class HeadDim(Record):
    """One head_dim in one kernel. ``runs_as`` is the size that the kernel works on, None where it
    is not known or refused; ``better`` a larger size that is surely no slower, where one is."""

    kernel: str
    head_dim: int
    verdict: Verdict
    runs_as: int | None
    better: int | None
    rule: Rule


def judge(kernel: str, arch: str, head_dim: int) -> HeadDim:
    """The verdict on a head_dim, of queries, keys and values alike, in 16-bit types.

    Safe is a size that the kernel works on as it is, misaligned one that a larger was measured to
    be faster than, or follows to be: equal work and wider loads. Raises KeyError for a kernel that
    is not among :data:`KERNELS`.
    """
    rule, runs_as = KERNELS[kernel]
    size = runs_as(head_dim, arch)
    if size is None and kernel != "trtllm":
        return HeadDim(kernel, head_dim, "refused", None, None, rule)
    if kernel == "triton" and head_dim % 16:  # equal work, by wider loads
        return HeadDim(kernel, head_dim, "misaligned", size, -(-head_dim // 16) * 16, rule)
    if kernel == "trtllm":
        slow = head_dim == 72 and arch in BLACKWELL
        return HeadDim(
            kernel,
            head_dim,
            "misaligned" if slow else "undecided",
            None,
            80 if slow else None,
            rule,
        )
    return HeadDim(kernel, head_dim, "safe" if size == head_dim else "undecided", size, None, rule)


def vision_kernel(engine: str, arch: str) -> str | None:
    """What an engine took for a vision tower where it was measured; None elsewhere."""
    return VISION.get(engine, {}).get(arch)


def _next(*templates: int) -> Callable[[int, str], int | None]:
    return lambda d, arch: None if d % 8 else next((t for t in templates if t >= d), None)


def _fa4(d: int, arch: str) -> int | None:
    if d % 8 or d > 256 or (arch in BLACKWELL and 128 < d < 256):
        return None
    return -(-d // 16) * 16


KERNELS: Mapping[str, tuple[Rule, Callable[[int, str], int | None]]] = {
    "fa2": (FA2, _next(32, 64, 96, 128, 160, 192, 256)),
    "fa3": (FA3, _next(64, 96, 128, 192, 256)),
    "fa4": (FA4, _fa4),
    "triton": (TRITON, lambda d, arch: max(16, 1 << (d - 1).bit_length())),
    "trtllm": (TRTLLM, lambda d, arch: None),
}
VISION: Mapping[str, Mapping[str, str]] = {
    "vllm": {"sm89": "fa2", "sm120": "fa2", "sm90": "fa3", "sm100": "fa4", "sm103": "fa4"},
    "sglang": {
        "sm89": "triton", "sm120": "triton", "sm103": "triton", "sm90": "fa3", "sm100": "fa4",
    },
    "tensorrt-llm": dict.fromkeys(("sm89", "sm120", "sm90", "sm100", "sm103"), "trtllm"),
}  # fmt: skip
"""The tables' column kernel_source, of L40S, RTX PRO 6000, H100 and H200, B200 and GB200, B300 and
GB300."""
