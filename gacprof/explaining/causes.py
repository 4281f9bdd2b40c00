"""Why a dim is slower than another: ranked causes, each with its share and its evidence.

From the dim in question to the one it is compared with leads a chain of measured dims, each
step of which takes away one cause: 107 → 112 takes away padding, 112 → 128 the unfilled
template. What a step's latency falls by is that cause's share. Steps that nothing known
accounts for are ``unexplained``; nothing is guessed and nothing interpolated. Hardware
counters, where there are any, add causes of their own: load widths, sectors, waves, the host.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from gacprof.cliffmap.schema import Curve, MapFile
from gacprof.cliffmap.selection import best, matching, why_none
from gacprof.core.errors import GacprofError, MapError
from gacprof.core.formatting import percent
from gacprof.core.points import Flag, Point
from gacprof.explaining import attention
from gacprof.explaining.case import Case, Cause, CauseChain, Counters, Explanation, Where, by_dim
from gacprof.kernels.evidence import KernelCounters
from gacprof.kernels.names import Kernel
from gacprof.kernels.tiers import Prediction, architecture, predict

__all__ = ["Cause", "Explanation", "Where", "explain", "explain_edge", "explain_map"]

ROW_AXES = ("K", "N")
"""Row lengths of the operands of ``y[M, N] = x[M, K] W``: M is none (operators/products.py)."""
CLEAR_WAVE = 0.1
"""Share of the last wave's slots left empty below which it is not worth naming."""
HOST_SHARE = 0.5
"""Share of the latency outside the device's own time above which the host sets it."""
MORE_SECTORS = 1.1
"""Ratio of L2 sectors to the least possible above which accesses are called broken up."""


def explain(
    curve: Curve, d: int, where: Where | None = None, counters: Counters | None = None
) -> Explanation:
    """Why ``d`` is slower than the fastest dim that is not smaller.

    Raises :class:`MapError` where ``d`` was not measured.
    """
    _check(curve, d)
    latency = curve.latencies
    fastest = min((x for x in latency if x >= d), key=lambda x: (latency[x], x))
    return _explain(Case(curve, d, fastest, where or Where(), counters or {}))


def explain_edge(
    curve: Curve,
    before: int,
    after: int,
    where: Where | None = None,
    counters: Counters | None = None,
) -> Explanation:
    """Why latency changes from ``before`` to ``after``. Raises :class:`MapError` as above."""
    _check(curve, before)
    _check(curve, after)
    if before == after:
        raise MapError(f"an edge needs two dims, not {before} twice")
    return _explain(Case(curve, after, before, where or Where(), counters or {}))


def explain_map(
    file: MapFile,
    operator: str,
    d: int,
    axis: str | None = None,
    dtype: str | None = None,
    fixed: Mapping[str, int] | None = None,
    flags: Mapping[str, Flag] | None = None,
    counters: Mapping[Point, Sequence[KernelCounters]] | None = None,
) -> Explanation:
    """The same for the map's curve of that operator that has ``d``.

    Of several the one whose flags are nearest the operator's defaults and that has the most
    dims. Raises :class:`MapError` where there is none, naming the curves that there are.
    """
    found = matching(file.curves, operator, axis, dtype, flags, fixed)
    if not found:
        missed = why_none(file.curves, operator, axis, dtype, flags, fixed)
        raise MapError(f"map '{file.name}' has no such curve of {operator}: {missed}")
    holding = [curve for curve in found if d in curve.points.d]
    chosen = best(holding or found, near=d)
    assert chosen is not None
    return explain(chosen, d, Where.of_map(file), by_dim(chosen, counters or {}))


def _check(curve: Curve, d: int) -> None:
    if d in curve.points.d:
        return
    near = sorted(curve.points.d, key=lambda x: abs(x - d))[:4]
    raise MapError(
        f"{curve.identity}: {curve.axis}={d} was not measured (nearest: "
        f"{', '.join(map(str, sorted(near)))}): a sweep over it gives it"
    )


def _explain(case: Case) -> Explanation:
    chain = CHAINS.get(case.curve.operator, CauseChain)(case)
    _finish(chain)
    return Explanation(
        curve=case.curve.identity,
        operator=case.curve.operator,
        axis=case.curve.axis,
        d=case.d,
        latency_us=case.latency[case.d],
        reference=case.reference,
        reference_us=case.latency[case.reference],
        served_by=chain.served_by,
        causes=tuple(sorted([*chain.causes, *_counted(case)], key=_rank)),
    )


def _rank(cause: Cause) -> tuple[bool, bool, float]:
    """Largest share first; what has no share after; within that, kernels before rules."""
    return cause.share is None, cause.basis == "rules", -abs(cause.share or 0.0)


# the chain of a matrix product: aligned rows; and how any operator's ends: residue, kernel, tile


def _of_rows(case: Case) -> CauseChain:
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


def _finish(chain: CauseChain) -> None:
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


CHAINS = {"attention": attention.chain, "linear": _of_rows}
"""By operator. An operator without its own chain still has residues, kernels and counters."""


# what counters show ------------------------------------------------------------------------


def _counted(case: Case) -> Iterator[Cause]:
    """From counters at ``d``, set against those at the reference where there are any."""
    here, there = case.counters.get(case.d, ()), case.counters.get(case.reference, ())
    if not here:
        return
    main, other = max(here, key=_duration), max(there, key=_duration, default=None)
    for kind, share, text in (*_seen(main, other), *_host(case, here)):
        yield Cause(kind, share, text, ("Nsight Compute counters",))


_Found = Iterator[tuple[str, float | None, str]]


def _duration(launch: KernelCounters) -> float:
    return launch.values.get("duration_ns") or 0.0


def _most_executed(launch: KernelCounters) -> tuple[str, int] | None:
    """The kind of global load that was executed most, and its bytes (TMA counts as 16)."""
    loads = launch.loads
    if not loads:
        return None
    kind = max(loads, key=lambda name: loads[name])
    return kind, 16 if kind == "TMA" else int(kind.split(".")[1])


def _seen(main: KernelCounters, other: KernelCounters | None) -> _Found:
    """In the longest launch, beside that of the reference."""
    narrow, wide = _most_executed(main), _most_executed(other) if other else None
    if narrow and wide and narrow[1] < wide[1]:
        text = f"loads of {narrow[1]} bytes ({narrow[0]}) instead of {wide[1]} ({wide[0]})"
        yield "load_width", None, text
    found, ideal = (main.values.get(f"l2_{which}_sectors") for which in ("theoretical", "ideal"))
    if found and ideal and found / ideal > MORE_SECTORS:
        text = f"{found / ideal:.2f}× the L2 sectors that whole accesses would need"
        yield "l2_sectors", None, text
    if main.legacy_mma:
        yield "alignment", None, "mma.sync instead of warpgroup MMA, whatever the kernel's name"
    waves = main.values.get("waves_per_sm") or 0.0
    empty = 1 - waves / math.ceil(waves) if waves > 1 else 0.0
    if empty > CLEAR_WAVE:
        share = percent(empty, decimals=0)
        text = f"{waves:.2f} waves of blocks: {share} of the slots stay empty"
        yield "wave_quantisation", empty, text


def _host(case: Case, launches: Sequence[KernelCounters]) -> _Found:
    if any(launch.values.get("duration_ns") is None for launch in launches):
        return
    device_us = sum(map(_duration, launches)) / 1000
    outside = 1 - device_us / case.latency[case.d]
    if outside > HOST_SHARE:
        text = f"the device works {device_us:.1f} µs; the rest is the host launching"
        yield "launch_bound", outside, text
