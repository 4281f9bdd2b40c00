"""From the measured columns of one axis to a :class:`~gacprof.cliffmap.schema.Curve`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf, isfinite
from statistics import median

from gacprof.cliffmap import detect
from gacprof.cliffmap.judge import TOLERANCE, Judged, judge, settled_dims
from gacprof.cliffmap.periods import find_period
from gacprof.cliffmap.schema import Cliff, Coverage, Curve, Period, Points, Tier
from gacprof.core.points import Flag


@dataclass(frozen=True)
class Axis:
    """What a curve is of. ``fixed`` are the operator's other dims."""

    operator: str
    axis: str
    fixed: Mapping[str, int]
    dtype: str
    flags: Mapping[str, Flag]
    timer: str


@dataclass(frozen=True)
class Measured:
    """One dim's statistics. Latency in microseconds, ``error`` its relative standard error beside
    the curve's other dims (None where the source gives none); ``mechanism`` is what served it."""

    d: int
    us: float
    error: float | None = None
    count: int = 1
    mechanism: str | None = None
    kernels: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Class:
    """Dims judged as neighbours: one residue class of a period, or the whole curve."""

    modulus: int
    remainders: list[int]
    members: list[Measured]


def make_curve(
    axis: Axis,
    measured: list[Measured],
    failed: Mapping[int, str] | None = None,
    tolerance: float = TOLERANCE,
) -> Curve:
    """Everything that follows from the columns: period, tiers, cliffs, frontier, verdicts.

    ``failed`` are dims that could not be measured, with the reason. Errors are those of all
    dims or of none. Raises ``ValueError`` (pydantic's) for fewer than two dims, a dim twice, or
    a latency that is no positive number.
    """
    measured = sorted(measured, key=lambda m: m.d)
    failed = dict(failed or {})
    dims, latency = [m.d for m in measured], [m.us for m in measured]
    errors = _errors(measured)
    floor = round(detect.cliff_floor(errors), 6)
    period = find_period(dims, latency, floor)
    classes = _classes(measured, period)
    cliffs_by_class = [_cliffs(c, len(measured) - 1) for c in classes]
    settled = settled_dims(dims, latency, period, tolerance)
    last = max((d for d, yes in zip(dims, settled, strict=True) if yes), default=0)
    judged = judge(latency, errors, tolerance, settled)
    misaligned = [d for d, v in zip(dims, judged.verdict, strict=True) if v == "misaligned"]
    points, mechanisms, kernels = _columns(measured, judged)
    asked = [*dims, *failed]
    return Curve(
        operator=axis.operator,
        axis=axis.axis,
        fixed=dict(sorted(axis.fixed.items())),
        dtype=axis.dtype,
        flags=dict(sorted(axis.flags.items())),
        timer=axis.timer,
        points=points,
        mechanisms=mechanisms,
        kernels=[list(names) for names in kernels],
        period=period,
        tiers=[
            tier
            for c, cliffs in zip(classes, cliffs_by_class, strict=True)
            for tier in _tiers(axis.axis, c, cliffs)
        ],
        cliffs=sorted((c for cs in cliffs_by_class for c in cs), key=lambda c: c.before),
        frontier=detect.frontier_of(dims, latency, settled, judged.verdict, floor),
        safe=[d for d, v in zip(dims, judged.verdict, strict=True) if v == "safe"],
        misaligned=misaligned,
        floor=floor,
        tolerance=tolerance,
        coverage=Coverage(
            first=min(asked), last=max(asked), measured=len(measured), settled=last,
            unsettled=[d for d, yes in zip(dims, settled, strict=True) if d < last and not yes],
            failed=failed,
        ),
    )  # fmt: skip


def _errors(measured: Sequence[Measured]) -> list[float] | None:
    """The errors; infinite for a dim that has none where others have."""
    if all(m.error is None for m in measured):
        return None
    return [inf if m.error is None else m.error for m in measured]


def _columns(
    measured: list[Measured], judged: Judged
) -> tuple[Points, list[str], list[tuple[str, ...]]]:
    mechanisms = sorted({m.mechanism for m in measured if m.mechanism})
    kernels = sorted({m.kernels for m in measured if m.kernels})
    mechanism_at = {name: i for i, name in enumerate(mechanisms)}
    kernels_at = {names: i for i, names in enumerate(kernels)}
    points = Points(
        d=[m.d for m in measured],
        median_us=[_rounded(m.us) for m in measured],
        low_us=[_bound(m, -1) for m in measured],
        high_us=[_bound(m, 1) for m in measured],
        count=[m.count for m in measured],
        penalty_low=[_rounded(p) for p in judged.low.tolist()],
        penalty_high=[_rounded(p) if isfinite(p) else None for p in judged.high.tolist()],
        mechanism=[mechanism_at.get(m.mechanism or "") for m in measured] if mechanisms else [],
        kernels=[kernels_at.get(m.kernels) for m in measured] if kernels else [],
    )
    return points, mechanisms, kernels


def _bound(m: Measured, side: int) -> float | None:
    """The end of the latency's 95 % interval, beside the curve's other dims."""
    if m.error is None or not isfinite(m.error):
        return None
    return _rounded(m.us * exp(side * detect.NORMAL_95 * m.error))


def _rounded(value: float) -> float:
    """Six significant digits: far below any timer's resolution, and half the file's size."""
    return float(f"{value:.6g}")


def _classes(measured: list[Measured], period: Period | None) -> list[_Class]:
    modulus = period.modulus if period else 1
    remainders = [c.remainders for c in period.classes] if period else [[0]]
    return [_Class(modulus, r, [m for m in measured if m.d % modulus in r]) for r in remainders]


def _cliffs(c: _Class, looked_at: int) -> list[Cliff]:
    dims, latency = [m.d for m in c.members], [m.us for m in c.members]
    at = {m.d: m for m in c.members}
    return [
        cliff.model_copy(
            update={
                "modulus": c.modulus,
                "remainders": c.remainders,
                "cause": _cause(at[cliff.before], at[cliff.after]),
            }
        )
        for cliff in detect.edges(dims, latency, _errors(c.members), looked_at)
    ]


def _cause(before: Measured, after: Measured) -> str | None:
    """Another mechanism, else another kernel of the same one; None where kernels are unknown."""
    if before.mechanism is None or after.mechanism is None:
        return None
    if before.mechanism != after.mechanism:
        return f"{before.mechanism} → {after.mechanism}"
    if before.kernels != after.kernels:
        return f"another kernel of {before.mechanism}"
    return "same kernel"


def _tiers(axis: str, c: _Class, cliffs: list[Cliff]) -> list[Tier]:
    """Stretches of the class between cliffs and between changes of mechanism."""
    edges = {cliff.after for cliff in cliffs}
    stretches: list[list[Measured]] = []
    for m in c.members:
        if not stretches or m.d in edges or m.mechanism != stretches[-1][-1].mechanism:
            stretches.append([])
        stretches[-1].append(m)
    name = detect.label(axis, c.modulus, c.remainders)
    return [
        Tier(
            name=name,
            first=stretch[0].d,
            last=stretch[-1].d,
            modulus=c.modulus,
            remainders=c.remainders,
            mechanism=stretch[0].mechanism,
            median_us=_rounded(median(m.us for m in stretch)),
        )
        for stretch in stretches
    ]
