"""The causes of a GEMM's dim: alignment of its rows; and of any dim: residue, kernel, tile."""

from __future__ import annotations

from gacprof.core.errors import GacprofError
from gacprof.explain.case import Case, CauseChain
from gacprof.kernels.kernel import Kernel
from gacprof.kernels.tiers import Prediction, architecture, predict

ROW_AXES = ("K", "N")
"""Row lengths of the operands of ``y[M, N] = x[M, K] W``: M is none (operators/linear.py)."""


def chain(case: Case) -> CauseChain:
    """Aligned rows → the same residue → the same kernel → the other dim."""
    here = case.product(case.d) or case.mechanism(case.d)
    made = CauseChain(case, [str(here)] if here else [])
    if case.curve.axis in ROW_AXES and case.curve.fixed.get("M") != 1:  # no rule for a GEMV
        _alignment(case, made)
    return made


def _alignment(case: Case, made: CauseChain) -> None:
    """Steps between dims whose rows suit different kernels, at either end of the chain."""
    here, there = _predicted(case, case.d), _predicted(case, case.reference)
    if here is None or there is None or None in (here.tier, there.tier) or here.tier == there.tier:
        return
    best, by_rules = architecture(here.arch).tiers_for(here.dtype)[0], [f"rules of {here.arch}"]
    target = case.next_multiple(case.d, needs := best.elements(here.dtype))
    if here.tier != best and target is not None:
        kernel, other = case.product(case.d), case.product(target)
        if kernel is None or other is None or not kernel.alignment or not other.alignment:
            made.step("alignment", target, here.sentence, by_rules, "rules")
        elif kernel.alignment != other.alignment:
            text = (
                f"a kernel for rows of {kernel.alignment} ({kernel.mechanism}) "
                f"instead of {other.alignment} ({other.mechanism})"
            )
            made.step("alignment", target, text, ["kernel names"])
        # else: what ran contradicts the rules, and what ran counts
    if there.tier != best:
        goal, text = case.next_multiple(case.reference, needs), "less what the rows of {} cost"
        made.lead_to(goal, "alignment", text.format(case.reference), by_rules, "rules")


def _predicted(case: Case, d: int) -> Prediction | None:
    try:
        return predict(case.where.arch or "", case.curve.dtype, {case.curve.axis: d})
    except GacprofError:
        return None


def finish(chain: CauseChain) -> None:
    """Lead any operator's chain to the reference, naming each step if it can be named."""
    _residue(chain)
    case, goal = chain.case, chain.goal
    if chain.at != goal:
        left = abs(case.latency[chain.at] - case.latency[goal]) / case.latency[case.d]
        if (found := _switch(case, chain.at, goal)) is not None:
            kind, text, evidence = found
            chain.step(kind, goal, text, [evidence])
        elif left > case.curve.floor:
            chain.step("unexplained", goal, f"unexplained ({_why(case)})", [])
        else:
            chain.at = goal  # the noise could make such a difference
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


def _switch(case: Case, at: int, goal: int) -> tuple[str, str, str] | None:
    """(kind, sentence, evidence) by what served at both ends, if that is known and differs."""
    here, there = case.product(at), case.product(goal)
    if here is None or there is None:  # the map may still say what served, as it does of CPUs
        served, other = case.mechanism(at), case.mechanism(goal)
        if served is None or other is None or served == other:
            return None
        return "kernel_switch", f"{served} instead of {other}", "names in the map"
    if _variant(here) != _variant(there):
        return "kernel_switch", f"another kernel: {here} instead of {there}", "kernel names"
    if extent := _tile_extent(case, here):
        tiles, others = -(-at // extent), -(-goal // extent)
        if tiles != others:
            text = f"{tiles} tiles of {extent} along {case.curve.axis}, not {others}"
            return "tile_quantisation", text, "kernel names"
    return None


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
