"""How well a GPU that is not at hand serves a point, by rules: a tier, never a latency.

Tier 1 is the best that the GPU's kernels have for such work; a point of tier 2 is served by
another mechanism, and at the same work it is not faster. What is known beyond that order is said
with its source; nothing here is measured. The rules are read from library binaries, from PyTorch's
code, from documents and from public threads, and each says which.

:func:`serve` is the one entrance. ``gemm`` and ``attention`` hold the rules of their operators,
those of Triton kernels that read rows stand here.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping

from gacprof.core.points import Point
from gacprof.rules import attention, gemm
from gacprof.rules.target import NoRuleError, RefusedError, Rule, ServingTier, Target, target

PTX = "PTX of our row copy for the architecture, Triton 3.7.1 (gacprof/operators/stream_triton.py)"
WIDE = Rule("rows of a multiple of 16: ld.global.v4, 16 bytes a load", PTX, "binary")
NARROW = Rule(
    "Triton is told of divisibility by 16 only: single elements are loaded", PTX, "binary"
)
ROWS = Rule(
    "the one published sweep of rows falls over 4000 to 4048 as if its clock still rose: which "
    "multiples of 16 are good is not known",
    "arXiv 2604.09595, figures 8c and 13c",
    "published",
)


def _serve_rows(point: Point, target: Target) -> ServingTier:
    """Triton's JIT tells its compiler of an integer argument only whether 16 divides it. Compiled
    for every architecture of the data sheet, a row copy loads 16 bytes at once where it does and
    single elements where it does not."""
    if point.dim["K"] % 16 == 0 and point.flag.get("specialise", True):
        return ServingTier(1, "16-byte loads", (WIDE,), doubts=(ROWS,), open=True)
    return ServingTier(2, "single-element loads", (NARROW,))


SERVES: Mapping[str, Callable[[Point, Target], ServingTier]] = {
    **dict.fromkeys(("linear", "bmm", "experts", "quantised"), gemm.serve),
    "attention": attention.serve,
    **dict.fromkeys(("row_sum", "row_copy"), _serve_rows),
}


def serve(point: Point, target: Target) -> ServingTier:
    """The tier of a point and why.

    Raises :class:`RefusedError` where PyTorch or the libraries cannot serve it, and
    :class:`NoRuleError` for an operator or a data type without rules."""
    if point.operator not in SERVES:
        raise NoRuleError(f"there is no rule for the operator '{point.operator}'")
    return SERVES[point.operator](point, target)


def step(point: Point, axis: str, target: Target) -> Hashable:
    """What dims of an axis have in common that do the same work: a template, a column of tiles.
    Of equal steps the widest dim is on the frontier."""
    if point.operator == "attention" and axis == "head_dim":
        return attention.step(point, target)
    by_tiles = SERVES.get(point.operator) is gemm.serve
    return gemm.step(point, axis, target) if by_tiles else point.dim[axis]


__all__ = [
    "NoRuleError", "RefusedError", "Rule", "ServingTier", "Target", "serve", "step", "target",
]  # fmt: skip
