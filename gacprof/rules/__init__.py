"""How well a GPU that is not at hand serves a point, by rules: a tier, never a latency.

Tier 1 is the best that the GPU's kernels have for such work; a point of tier 2 is served by
another mechanism, and at the same work it is not faster. What is known beyond that order is said
with its source; nothing here is measured. The rules are read from library binaries, from PyTorch's
code, from documents and from public threads, and each says which.

:func:`serve` is the one entrance. ``gemm``, ``attention`` and ``loads`` hold the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping

from gacprof.core.points import Point
from gacprof.rules import attention, gemm, loads
from gacprof.rules.target import NoRuleError, RefusedError, Rule, Served, Target, target

SERVES: Mapping[str, Callable[[Point, Target], Served]] = {
    **dict.fromkeys(("linear", "bmm", "experts", "quantised"), gemm.serve),
    "attention": attention.serve,
    **dict.fromkeys(("row_sum", "row_copy"), loads.serve),
}


def serve(point: Point, target: Target) -> Served:
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
    if point.operator in ("linear", "bmm", "experts", "quantised"):
        return gemm.step(point, axis, target)
    return point.dim[axis]


__all__ = ["NoRuleError", "RefusedError", "Rule", "Served", "Target", "serve", "step", "target"]
