"""head_dim: which SDPA backend a release takes, and whether its kernel is filled.

FlashAttention-2 has a kernel for each of a few head_dims (templates). One that is smaller than its
template runs the template's loops with bounds checks; one that is no multiple of 8 is padded by
copies of q, k and v first, and the output sliced after.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache

from gacprof.core.errors import MapError
from gacprof.core.points import Point
from gacprof.kernels.sdpa import BackendChoice, choose_backend, question_of
from gacprof.rules.target import RefusedError, Rule, ServingTier, Target

CODE = "PyTorch 2.6 to 2.13, sdp_utils.cpp and attention.cpp (gacprof/kernels/sdpa.py)"

BACKENDS = ("flash", "efficient", "math", "cudnn")
CLASSES = {
    "cudnn": Rule(
        "cuDNN serves multiples of 8; its own steps are not known, but 128", CODE, "code"
    ),
    "filled": Rule("head_dim is FlashAttention-2's template itself", "", "binary"),
    "unfilled": Rule(
        "the template's loops run with bounds checks: no faster than it", "", "binary"
    ),
    "padded": Rule("copies pad q, k and v to a multiple of 8, another slices", CODE, "code"),
    "efficient": Rule("the memory-efficient kernel serves multiples of 8 (fp32: 4)", CODE, "code"),
    "efficient, unfilled": Rule(
        "the memory-efficient kernel was slower at 104 to 120 than at 128, not at 96",
        "arXiv 2604.09595, table B.1 (A100)",
        "published",
    ),
    "math": Rule("no fused kernel takes it: products and softmax run one by one", CODE, "code"),
}
"""The unfilled efficient kernel was added when rules were compared with the published A100 map."""
RANK = {name: rank for rank, name in enumerate(CLASSES)} | {"filled": 0}
CUDNN_KERNEL = 128
"""libtorch_cuda 2.13 carries the sources of two of cuDNN's kernels, both of this head_dim."""
EFFICIENT_STEP = {"sm80": 32}
"""Multiples of it up to 128 fill the memory-efficient kernel; of other architectures nobody showed
any."""


def serve(point: Point, target: Target) -> ServingTier:
    """Tiers count the classes that head_dims up to 256 (or 512) meet in such a call."""
    name, mechanism = _class(point, target)
    met = _met(point.with_dim("head_dim", 8), target, 513 if point.dim["head_dim"] > 256 else 257)
    rule = CLASSES[name]
    if not rule.source:
        rule = Rule(rule.says, f"libtorch_cuda.so, {target.templates.source}", rule.basis)
    d = point.dim["head_dim"]
    known = {"cudnn": d == CUDNN_KERNEL, "efficient": target.arch in EFFICIENT_STEP and d <= 128}
    is_open = not known.get(name, True)
    return ServingTier(1 + met.index(RANK[name]), mechanism, (rule,), open=is_open)


def step(point: Point, target: Target) -> Hashable:
    """The template; of other backends each head_dim is a step of its own."""
    choice = _choice(point, target)
    d = point.dim["head_dim"]
    return target.templates.template_for(d) if choice.backend == "flash" else d


def _class(point: Point, target: Target) -> tuple[str, str]:
    choice, d = _choice(point, target), point.dim["head_dim"]
    if choice.backend == "efficient" and d <= 128 and d % EFFICIENT_STEP.get(target.arch, 1):
        return "efficient, unfilled", "SDPA efficient, not filled"
    if choice.backend != "flash":
        return choice.backend, f"SDPA {choice.backend}"
    template = target.templates.template_for(d)
    if choice.pads_to:
        return "padded", f"flash template {template}, padded"
    filled = target.templates.even_k(d)
    return ("filled", f"flash template {template}") if filled else (
        "unfilled", f"flash template {template} not filled"
    )  # fmt: skip


def _choice(point: Point, target: Target) -> BackendChoice:
    forced = str(point.flag.get("backend", "auto"))
    disabled = () if forced == "auto" else tuple(b for b in BACKENDS if b != forced)
    try:
        return choose_backend(question_of(point, target.arch, target.torch, target.cudnn), disabled)
    except MapError as error:
        raise RefusedError(str(error)) from None


@lru_cache
def _met(point: Point, target: Target, below: int) -> list[int]:
    """The classes that head_dims ``below`` that meet in such a call, best first."""
    found = set()
    for d in range(1, below):
        try:
            found.add(RANK[_class(point.with_dim("head_dim", d), target)[0]])
        except RefusedError:
            continue
    return sorted(found)
