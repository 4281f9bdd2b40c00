"""The causes of a GEMM's dim: alignment of its rows; and of any dim: residue, kernel, tile."""

from __future__ import annotations

from collections.abc import Sequence

from gacprof.core.errors import GacprofError
from gacprof.explain.case import Case, CauseChain
from gacprof.kernels.kernel import Kernel
from gacprof.kernels.names import Group
from gacprof.kernels.tiers import Prediction, architecture, predict

ROW_AXES = ("K", "N")
"""Row lengths of the operands of ``y[M, N] = x[M, K] W``: M is none (operators/linear.py)."""


def main_kernel(groups: Sequence[Group]) -> Kernel | None:
    """The product's own kernel among what ran; None where none was recorded."""
    return next((group.main for group in groups if group.main.role in ("gemm", "gemv")), None)


def chain(case: Case) -> CauseChain:
    """Aligned rows → the same residue → the same kernel → the other dim."""
    here = main_kernel(case.groups(case.d)) or case.mechanism(case.d)
    made = CauseChain(case, [str(here)] if here else [])
    if case.curve.axis in ROW_AXES and case.curve.fixed.get("M") != 1:  # no rule for a GEMV
        _alignment(case, made)
    return made


def _alignment(case: Case, made: CauseChain) -> None:
    """Steps between dims whose rows suit different kernels, at either end of the chain."""
    here, there = _predicted(case, case.d), _predicted(case, case.reference)
    if here is None or there is None or None in (here.tier, there.tier) or here.tier == there.tier:
        return
    best = architecture(here.arch).tiers[here.dtype][0]
    needs = best.elements(here.dtype)
    if here.tier != best:
        _step_to_aligned(case, made, here, needs)
    if there.tier != best:
        goal = case.next_multiple(case.reference, needs)
        text = f"less what the rows of {case.reference} cost"
        made.lead_to(goal, "alignment", text, [f"rules of {case.where.arch}"], "rules")


def _predicted(case: Case, d: int) -> Prediction | None:
    try:
        return predict(case.where.arch or "", case.curve.dtype, {case.curve.axis: d})
    except GacprofError:
        return None


def _step_to_aligned(case: Case, made: CauseChain, here: Prediction, needs: int) -> None:
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


def finish(chain: CauseChain) -> None:
    """Lead any operator's chain to the reference, naming each step if it can be named."""
    _residue(chain)
    case = chain.case
    if chain.at != chain.goal and not _switch(chain):
        left = abs(case.latency[chain.at] - case.latency[chain.goal]) / case.latency[case.d]
        if left > case.curve.floor:
            chain.step("unexplained", chain.goal, f"unexplained ({_why(case)})", [])
        else:
            chain.at = chain.goal  # the noise could make such a difference
    chain.last_step()


def _why(case: Case) -> str:
    if case.kernels(case.d):
        return "the kernels are the same"
    return "the same library serves both" if case.mechanism(case.d) else "no kernel was recorded"


def _residue(chain: CauseChain) -> None:
    """Step to the next dim of the fastest residue class, where the map found a period."""
    case, period = chain.case, chain.case.curve.period
    if period is None or chain.goal <= chain.at:
        return
    fastest = period.classes[0].remainders
    own = chain.at % period.modulus
    ratio = next((c.ratio for c in period.classes if own in c.remainders), None)
    target = next(
        (x for x in sorted(case.latency) if x > chain.at and x % period.modulus in fastest), None
    )
    if own in fastest or ratio is None or target is None:
        return
    text = (
        f"dims that leave {own} modulo {period.modulus} run {ratio:.2f}× as long as those that "
        f"leave {', '.join(map(str, fastest))}; which mechanism is not recorded"
    )
    chain.step("residue", target, text, [f"period {period.modulus} of the measured curve"])


def _switch(chain: CauseChain) -> bool:
    """Name the step to the goal by what served at both ends, if that is known and differs."""
    case = chain.case
    here, there = main_kernel(case.groups(chain.at)), main_kernel(case.groups(chain.goal))
    if here is None or there is None:  # the map may still say what served, as it does of CPUs
        served, other = case.mechanism(chain.at), case.mechanism(chain.goal)
        if served is None or other is None or served == other:
            return False
        text = f"{served} instead of {other}"
        chain.step("kernel_switch", chain.goal, text, ["names in the map"])
        return True
    if _variant(here) != _variant(there):
        text = f"another kernel: {here} instead of {there}"
        chain.step("kernel_switch", chain.goal, text, ["kernel names"])
        return True
    extent = _tile_extent(case, here)
    if not extent or -(-chain.at // extent) == -(-chain.goal // extent):
        return False
    tiles, others = -(-chain.at // extent), -(-chain.goal // extent)
    text = f"{tiles} tiles of {extent} along {case.curve.axis}, not {others}"
    chain.step("tile_quantisation", chain.goal, text, ["kernel names"])
    return True


def _variant(kernel: Kernel) -> tuple[object, ...]:
    return kernel.mechanism, kernel.tile, kernel.stages, kernel.cluster, kernel.split_k


def _tile_extent(case: Case, kernel: Kernel) -> int | None:
    """The tile's extent along the swept axis.

    cuBLAS is column-major, so it computes yᵀ: its M is our N (output features), its N our M.
    """
    if case.curve.operator != "linear" or kernel.provider not in ("cublas", "cutlass"):
        return None
    index = {"N": 0, "M": 1, "K": 2}.get(case.curve.axis)
    tile = kernel.tile or ()
    return tile[index] if index is not None and len(tile) > index else None
