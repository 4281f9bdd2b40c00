"""The path of a GEMM's dim: aligned rows → the same residue → the same kernel → the other dim."""

from __future__ import annotations

from collections.abc import Sequence

from gacprof.core.errors import GacprofError
from gacprof.explain.causes.case import Case, Path
from gacprof.kernels.kernel import Kernel
from gacprof.kernels.names import Group
from gacprof.kernels.tiers import Prediction, Tier, architecture, predict

ROW_AXES = ("K", "N")
"""Row lengths of the operands of ``y[M, N] = x[M, K] W``: M is none (operators/linear.py)."""
_ROLES = ("gemm", "gemv")


def path(case: Case) -> Path:
    here = main_kernel(case.groups(case.d)) or case.mechanism(case.d)
    made = Path(case, [str(here)] if here else [])
    if case.curve.axis in ROW_AXES and case.curve.fixed.get("M") != 1:  # no rule for a GEMV
        _alignment(case, made)
    return made


def main_kernel(groups: Sequence[Group]) -> Kernel | None:
    """The product's own kernel among what ran; None where none was recorded."""
    return next((group.main for group in groups if group.main.role in _ROLES), None)


def _alignment(case: Case, made: Path) -> None:
    """Steps between dims whose rows suit different kernels, at either end of the path."""
    here, there = _tier(case, case.d), _tier(case, case.reference)
    if here is None or there is None or here.tier == there.tier:
        return
    best = _best(case)
    if best is None or here.tier is None or there.tier is None:
        return
    if here.tier != best:
        _step_to_aligned(case, made, here, best.elements(case.curve.dtype))
    if there.tier != best:
        goal = case.next_multiple(case.reference, best.elements(case.curve.dtype))
        text = f"less what the rows of {case.reference} cost"
        made.lead_to(goal, "alignment", text, [f"rules of {case.where.arch}"], "rules")


def _step_to_aligned(case: Case, made: Path, here: Prediction, needs: int) -> None:
    target = case.next_multiple(case.d, needs)
    if target is None:
        return
    kernel, other = main_kernel(case.groups(case.d)), main_kernel(case.groups(target))
    if kernel is None or other is None or not kernel.alignment or not other.alignment:
        evidence = [f"rules of {case.where.arch}"]
        made.step("alignment", target, here.sentence, evidence, "rules")
    elif kernel.alignment != other.alignment:
        text = (
            f"a kernel for rows of {kernel.alignment} ({kernel.mechanism}) "
            f"instead of {other.alignment} ({other.mechanism})"
        )
        made.step("alignment", target, text, ["kernel names"])
    # else: what ran contradicts the rules, and what ran counts


def _tier(case: Case, d: int) -> Prediction | None:
    if case.where.arch is None:
        return None
    try:
        return predict(case.where.arch, case.curve.dtype, {case.curve.axis: d})
    except GacprofError:
        return None


def _best(case: Case) -> Tier | None:
    tiers = architecture(case.where.arch or "").tiers.get(case.curve.dtype)
    return tiers[0] if tiers else None
