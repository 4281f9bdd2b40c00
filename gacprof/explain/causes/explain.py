"""Putting an explanation together: who is compared, the path, what is left, the order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gacprof.cliffmap.schema import Curve, MapFile
from gacprof.cliffmap.selection import best, matching, why_none
from gacprof.core.errors import MapError
from gacprof.core.points import Flag, Point
from gacprof.explain.causes import attention, counted, linear, remainder
from gacprof.explain.causes.case import Case, Counters, Path
from gacprof.explain.causes.value import Cause, Explanation, Where
from gacprof.explain.edges import points_of
from gacprof.kernels.ncu import KernelCounters

PATHS: Mapping[str, Callable[[Case], Path]] = {"attention": attention.path, "linear": linear.path}
"""By operator. An operator without its own path still has residues, kernels and counters."""


def explain(
    curve: Curve, d: int, where: Where | None = None, counters: Counters | None = None
) -> Explanation:
    """Why ``d`` is slower than the fastest dim that is not smaller.

    ``counters`` are launches by dim, where Nsight Compute was run. Raises :class:`MapError`
    where ``d`` was not measured.
    """
    latency = dict(zip(curve.points.d, curve.points.median_us, strict=True))
    _check(curve, d)
    best = min((x for x in latency if x >= d), key=lambda x: (latency[x], x))
    return _explain(Case(curve, d, best, where or Where(), counters or {}))


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
    known = {p.dim[chosen.axis]: c for p in points_of(chosen) if (c := (counters or {}).get(p))}
    return explain(chosen, d, Where.of_map(file), known)


def _check(curve: Curve, d: int) -> None:
    if d in curve.points.d:
        return
    near = sorted(curve.points.d, key=lambda x: abs(x - d))[:4]
    raise MapError(
        f"{curve.identity}: {curve.axis}={d} was not measured (nearest: "
        f"{', '.join(map(str, sorted(near)))}): a sweep over it gives it"
    )


def _explain(case: Case) -> Explanation:
    make = PATHS.get(case.curve.operator)
    path = make(case) if make else Path(case, [])
    remainder.finish(path)
    causes = [*path.causes, *counted.causes(case)]
    return Explanation(
        curve=case.curve.identity,
        operator=case.curve.operator,
        axis=case.curve.axis,
        d=case.d,
        latency_us=case.latency[case.d],
        reference=case.reference,
        reference_us=case.latency[case.reference],
        served_by=path.served_by,
        causes=tuple(sorted(causes, key=_rank)),
    )


def _rank(cause: Cause) -> tuple[bool, bool, float]:
    """Largest share first; what has no share after; within that, kernels before rules."""
    return cause.share is None, cause.basis == "rules", -abs(cause.share or 0.0)
