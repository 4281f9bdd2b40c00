"""What the measured columns of one axis say, and the
:class:`~gacprof.cliffmap.schema.Curve` that holds it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, hypot, inf, isfinite, isinf
from statistics import median

import numpy as np

from gacprof.cliffmap import detect
from gacprof.cliffmap.schema import Cliff, Coverage, Curve, Points, Tier
from gacprof.core.points import Flag, Point
from gacprof.stats.blocks import CurveBlocks
from gacprof.stats.findings import Period, classes_of
from gacprof.stats.fit import Fit, Floats
from gacprof.stats.judge import (
    TOLERANCE,
    Judged,
    comparable_dims,
    judge,
    known_errors,
    quantile,
    satterthwaite,
)
from gacprof.stats.periods import find_period


@dataclass(frozen=True)
class Axis:
    """What a curve is of. ``fixed`` are the operator's other dims."""

    operator: str
    axis: str
    fixed: Mapping[str, int]
    dtype: str
    flags: Mapping[str, Flag]
    timer: str

    @classmethod
    def of(cls, point: Point, axis: str, timer: str) -> Axis:
        fixed = {name: size for name, size in point.dims if name != axis}
        return cls(point.operator, axis, fixed, point.dtype, point.flag, timer)

    def point(self, d: int) -> Point:
        return Point.of(self.operator, {**self.fixed, self.axis: d}, self.dtype, self.flags)


@dataclass(frozen=True)
class Measured:
    """One dim's statistics. Latency in microseconds, ``error`` its relative standard error beside
    the curve's other dims (None where the source gives none) of so many ``degrees`` of freedom;
    ``mechanism`` is what served it."""

    d: int
    us: float
    error: float | None = None
    count: int = 1
    mechanism: str | None = None
    kernels: tuple[str, ...] = ()
    degrees: float = inf

    @property
    def half_width(self) -> float | None:
        """Half of what the latency's 95 % interval spans (log, Student's), beside the curve's other
        dims; as the error where that is infinite or None."""
        if self.error is None or isinf(self.error):
            return self.error
        return quantile(0.025, self.degrees) * self.error


@dataclass(frozen=True)
class JudgedCurve:
    """What the columns of a curve say: of each dim, in ascending order, and of its edges.
    ``floor`` is the jump (a fraction) that noise can cause at a usual edge."""

    d: list[int]
    judged: Judged
    comparable: list[bool]
    period: Period | None
    cliffs: list[Cliff]
    floor: float

    @property
    def half_width(self) -> float:
        """Half of what the interval of a comparable dim's penalty spans, the median."""
        width = (self.judged.high - self.judged.low)[self.comparable]
        return float(np.median(width)) / 2 if len(width) else inf

    @property
    def undecided(self) -> int:
        """Dims that more blocks could decide and that are not decided: ones that are comparable
        once all errors are known."""
        columns = zip(self.judged.verdict, comparable_dims(self.d, self.period), strict=True)
        return sum(verdict == "undecided" and comparable for verdict, comparable in columns)


def judge_curve(measured: Sequence[Measured], tolerance: float = TOLERANCE) -> JudgedCurve:
    """The one judge of a curve: a sweep stops by it, and a map is built by it.

    ``measured`` ascends by dim. Dims of unknown error are undecided, and count as not measured for
    what is asked of the others.
    """
    dims, latency = [m.d for m in measured], [m.us for m in measured]
    errors = known_errors([m.error for m in measured])
    degrees = None if errors is None else [m.degrees for m in measured]
    sure = [m for m in measured if errors is None or isfinite(m.error or 0.0)]
    floor = round(detect.cliff_floor(errors, degrees), 6)
    period = find_period([m.d for m in sure], [m.us for m in sure], floor)
    held = dict(zip((m.d for m in sure), comparable_dims([m.d for m in sure], period), strict=True))
    comparable = [held.get(d, False) for d in dims]
    cliffs: list[Cliff] = []
    for modulus, remainders in classes_of(period):
        here = [i for i, d in enumerate(dims) if d % modulus in remainders]
        found = detect.edges(
            [dims[i] for i in here],
            [latency[i] for i in here],
            None if errors is None else [errors[i] for i in here],
            len(dims) - 1,
            None if degrees is None else [degrees[i] for i in here],
        )
        where = {"modulus": modulus, "remainders": remainders}
        cliffs += [cliff.model_copy(update=where) for cliff in found]
    judged = judge(latency, errors, tolerance, comparable, degrees)
    return JudgedCurve(
        dims, judged, comparable, period, sorted(cliffs, key=lambda c: c.before), floor
    )


def measured_of(
    curve: CurveBlocks, moved: Floats | float = 0.0, inflation: float = 1.0, unseen: float = 0.0
) -> list[Measured]:
    """The dims of a curve (:func:`pooled`); without an error where it was contended throughout."""
    found = pooled(curve.dims, curve.fit, moved, inflation, unseen)
    return [replace(m, error=inf) for m in found] if curve.contended else found


def pooled(
    dims: Sequence[int],
    fit: Fit,
    moved: Floats | float = 0.0,
    inflation: float = 1.0,
    unseen: float = 0.0,
) -> list[Measured]:
    """The dims of a fitted curve, ascending: each slot's and its replicate's effects, weighed by
    1/error², ``moved`` (log, by slot).

    ``dims`` are those of the slots. Errors are multiplied by ``inflation``; ``unseen`` is the
    error that other devices of the kind would add. Slots without any call are left out.
    """
    effect, found = fit.effect + moved, []
    slots: dict[int, list[int]] = {}
    for slot in np.flatnonzero(~np.isnan(fit.effect)).tolist():
        slots.setdefault(dims[slot], []).append(slot)
    for d, all_of_it in sorted(slots.items()):
        of = np.array([s for s in all_of_it if isfinite(fit.error[s])] or all_of_it)
        error = fit.error[of]
        weight = error**-2.0 if np.isfinite(error).all() and error.all() else np.ones(len(of))
        weight = weight / weight.sum()
        own = (weight * error).tolist()
        found.append(
            Measured(
                d,
                exp(float(weight @ effect[of])),
                hypot(inflation * hypot(*own), unseen),
                int(fit.counts[all_of_it].sum()),
                degrees=satterthwaite(own, fit.degrees[of].tolist()),
            )
        )
    return found


def make_curve(
    axis: Axis,
    measured: list[Measured],
    failed: Mapping[int, str] | None = None,
    tolerance: float = TOLERANCE,
    throttled: str = "",
) -> Curve:
    """Everything that follows from the columns: period, tiers, cliffs, frontier, verdicts.

    ``failed`` are dims that could not be measured, with the reason. Errors are those of all
    dims or of none. Raises ``ValueError`` (pydantic's) for fewer than two dims, a dim twice, or
    a latency that is no positive number.
    """
    measured = sorted(measured, key=lambda m: m.d)
    found = judge_curve(measured, tolerance)
    dims, verdicts = found.d, found.judged.verdict
    at = {m.d: m for m in measured}
    mechanisms = sorted({m.mechanism for m in measured if m.mechanism})
    kernels = sorted({m.kernels for m in measured if m.kernels})
    return Curve(
        operator=axis.operator,
        axis=axis.axis,
        fixed=dict(sorted(axis.fixed.items())),
        dtype=axis.dtype,
        flags=dict(sorted(axis.flags.items())),
        timer=axis.timer,
        throttled=throttled,
        points=_points(measured, found.judged, mechanisms, kernels),
        mechanisms=mechanisms,
        kernels=[list(names) for names in kernels],
        period=found.period,
        tiers=_tiers(measured, axis.axis, found),
        cliffs=[
            c.model_copy(update={"cause": _cause(at[c.before], at[c.after])}) for c in found.cliffs
        ],
        frontier=detect.frontier_of(
            dims, [m.us for m in measured], found.comparable, verdicts, found.floor
        ),
        safe=[d for d, v in zip(dims, verdicts, strict=True) if v == "safe"],
        misaligned=[d for d, v in zip(dims, verdicts, strict=True) if v == "misaligned"],
        floor=found.floor,
        tolerance=tolerance,
        coverage=_coverage(found, dict(failed or {})),
    )


def _points(
    measured: Sequence[Measured],
    judged: Judged,
    mechanisms: Sequence[str],
    kernels: Sequence[tuple[str, ...]],
) -> Points:
    return Points(
        d=[m.d for m in measured],
        latency_us=[_rounded(m.us) for m in measured],
        low_us=[_bound(m, -1) for m in measured],
        high_us=[_bound(m, 1) for m in measured],
        count=[m.count for m in measured],
        degrees=_degrees(measured),
        penalty_low=[_rounded(p) for p in judged.low.tolist()],
        penalty_high=[_rounded(p) if isfinite(p) else None for p in judged.high.tolist()],
        mechanism=_places([m.mechanism for m in measured], mechanisms),
        kernels=_places([m.kernels for m in measured], kernels),
    )


def _degrees(measured: Sequence[Measured]) -> list[float | None]:
    """Empty where all errors are exact, or none is known."""
    found = [_rounded(m.degrees) if isfinite(m.degrees) else None for m in measured]
    return found if any(found) else []


def _coverage(found: JudgedCurve, failed: dict[int, str]) -> Coverage:
    compared = dict(zip(found.d, found.comparable, strict=True))
    last = max((d for d, yes in compared.items() if yes), default=0)
    asked = [*found.d, *failed]
    return Coverage(
        first=min(asked), last=max(asked), measured=len(found.d), last_comparable=last,
        not_comparable=[d for d, yes in compared.items() if d < last and not yes],
        failed=failed,
    )  # fmt: skip


def _places(column: Sequence[Hashable], listed: Sequence[Hashable]) -> list[int | None]:
    """Where each entry stands in the list, None for one that is not there; empty for no list."""
    at = {name: i for i, name in enumerate(listed)}
    return [at.get(entry) for entry in column] if listed else []


def _bound(m: Measured, side: int) -> float | None:
    """The end of the latency's 95 % interval."""
    half = m.half_width
    return None if half is None or isinf(half) else _rounded(m.us * exp(side * half))


def _rounded(value: float) -> float:
    """Six significant digits: far below any timer's resolution, and half the file's size."""
    return float(f"{value:.6g}")


def _cause(before: Measured, after: Measured) -> str | None:
    """Another mechanism, else another kernel of the same one; None where kernels are unknown."""
    if before.mechanism is None or after.mechanism is None:
        return None
    if before.mechanism != after.mechanism:
        return f"{before.mechanism} → {after.mechanism}"
    if before.kernels != after.kernels:
        return f"another kernel of {before.mechanism}"
    return "same kernel"


def _tiers(measured: Sequence[Measured], axis: str, found: JudgedCurve) -> list[Tier]:
    """Stretches of each residue class between cliffs and between changes of mechanism."""
    edges = {cliff.after for cliff in found.cliffs}
    tiers = []
    for modulus, remainders in classes_of(found.period):
        stretches: list[list[Measured]] = []
        for m in (m for m in measured if m.d % modulus in remainders):
            if not stretches or m.d in edges or m.mechanism != stretches[-1][-1].mechanism:
                stretches.append([])
            stretches[-1].append(m)
        name = detect.label(axis, modulus, remainders)
        tiers += [
            Tier(
                name=name, first=stretch[0].d, last=stretch[-1].d, modulus=modulus,
                remainders=remainders, mechanism=stretch[0].mechanism,
                median_us=_rounded(median(m.us for m in stretch)),
            )
            for stretch in stretches
        ]  # fmt: skip
    return tiers
