"""Putting an explanation together: who is compared, the path, what is left, the order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from gacprof.errors import MapError
from gacprof.explaining.causes import attention, counted, linear, remainder
from gacprof.explaining.causes.case import Case, Counters, Path
from gacprof.explaining.causes.value import Cause, Explanation, Where

if TYPE_CHECKING:
    from gacprof.cliffmap.schema import Curve, MapFile

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
    fixed: Mapping[str, int] | None = None,
    flags: Mapping[str, bool | int | str] | None = None,
) -> Explanation:
    """The same for the map's curve of that operator that has ``d``.

    Of several the first whose fixed dims and flags agree with those given. Raises
    :class:`MapError` where there is none, naming the curves that there are.
    """
    found = [
        curve
        for curve in file.curves
        if curve.operator == operator
        and axis in (None, curve.axis)
        and all(curve.fixed.get(name) == size for name, size in (fixed or {}).items())
        and all(curve.flags.get(name) == value for name, value in (flags or {}).items())
    ]
    if not found:
        known = "; ".join(curve.identity for curve in file.curves) or "none"
        raise MapError(f"map '{file.name}' has no such curve of {operator} (there are: {known})")
    chosen = next((curve for curve in found if d in curve.points.d), found[0])
    return explain(chosen, d, Where.of_map(file))


def _check(curve: Curve, d: int) -> None:
    if d in curve.points.d:
        return
    near = sorted(curve.points.d, key=lambda x: abs(x - d))[:4]
    raise MapError(
        f"{curve.operator}: {curve.axis}={d} was not measured (nearest: "
        f"{', '.join(map(str, sorted(near)))}): a sweep over it gives it"
    )


def _explain(case: Case) -> Explanation:
    make = PATHS.get(case.curve.operator)
    path = make(case) if make else Path(case, [])
    remainder.finish(path)
    causes = [*path.causes, *counted.causes(case)]
    return Explanation(
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
