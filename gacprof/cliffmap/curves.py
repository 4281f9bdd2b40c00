"""From the measured columns of one axis to a :class:`~gacprof.cliffmap.schema.Curve`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from gacprof.cliffmap import detect
from gacprof.cliffmap.cliff import Cliff, Paired
from gacprof.cliffmap.periods import find_period
from gacprof.cliffmap.residues import label
from gacprof.cliffmap.schema import Coverage, Curve, Noise, Period, Points, Tier
from gacprof.points import Flag


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
    """One dim's statistics. Latencies in microseconds; ``mechanism`` is what served it."""

    d: int
    median_us: float
    low_us: float | None = None
    high_us: float | None = None
    count: int = 1
    mechanism: str | None = None
    kernels: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Class:
    """Dims judged as neighbours: one residue class of a period, or the whole curve."""

    modulus: int
    remainders: list[int]
    members: list[Measured] = field(default_factory=list)


def make_curve(
    axis: Axis,
    measured: list[Measured],
    floor: float | None,
    failed: Mapping[int, str] | None = None,
    noise: Noise | None = None,
    paired: Mapping[tuple[int, int], Paired] | None = None,
) -> Curve:
    """Everything the columns tell: period, tiers, cliffs, frontier, safe dims.

    ``floor`` is the noise floor that holds here; None takes :data:`detect.ASSUMED_FLOOR`.
    ``noise`` says what it rests on where that is not the whole map. ``failed`` are dims that
    could not be measured, with the reason; ``paired`` what neighbours measured in turns gave:
    a cliff that these do not bear out is none. Raises ``ValueError`` (pydantic's)
    for fewer than two dims, a dim twice, or a latency that is no positive number.
    """
    measured = sorted(measured, key=lambda m: m.d)
    failed = dict(failed or {})
    points, mechanisms, kernels = _columns(measured)
    resolved = detect.resolution(points.median_us, points.low_us, points.high_us)
    told = None if floor is None else max(floor, resolved)
    cliff_floor = round(detect.cliff_floor(told, len(measured) - 1), 5)
    period = find_period(points.d, points.median_us, cliff_floor)
    classes = _classes(measured, period)
    seen = [_cliffs(c, cliff_floor, paired or {}) for c in classes]
    cliffs_by_class = [[c for c in cliffs if _stands(c, cliff_floor)] for cliffs in seen]
    settled = _settled(points.d, period)
    # Beyond the last dim of the best class nothing can be said to be safe: what it would be
    # padded to was not measured.
    sure = sum(d <= settled for d in points.d)
    asked = [*points.d, *failed]
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
        refuted=sorted(
            (c for cs in seen for c in cs if not _stands(c, cliff_floor)), key=lambda c: c.before
        ),
        frontier=detect.frontier(points.d[:sure], points.median_us[:sure], cliff_floor),
        safe=[d for d in detect.safe(points.d, points.median_us, floor) if d <= settled],
        floor=cliff_floor,
        tolerance=detect.tolerance(floor),
        noise=noise,
        coverage=Coverage(
            first=min(asked), last=max(asked), measured=len(measured), settled=settled,
            failed=failed,
        ),
    )  # fmt: skip


def _columns(measured: list[Measured]) -> tuple[Points, list[str], list[tuple[str, ...]]]:
    mechanisms = sorted({m.mechanism for m in measured if m.mechanism})
    kernels = sorted({m.kernels for m in measured if m.kernels})
    mechanism_at = {name: i for i, name in enumerate(mechanisms)}
    kernels_at = {names: i for i, names in enumerate(kernels)}
    points = Points(
        d=[m.d for m in measured],
        median_us=[_rounded(m.median_us) for m in measured],
        low_us=[None if m.low_us is None else _rounded(m.low_us) for m in measured],
        high_us=[None if m.high_us is None else _rounded(m.high_us) for m in measured],
        count=[m.count for m in measured],
        mechanism=[mechanism_at.get(m.mechanism or "") for m in measured] if mechanisms else [],
        kernels=[kernels_at.get(m.kernels) for m in measured] if kernels else [],
    )
    return points, mechanisms, kernels


def _rounded(latency_us: float) -> float:
    """Six significant digits: far below any timer's resolution, and half the file's size."""
    return float(f"{latency_us:.6g}")


def _classes(measured: list[Measured], period: Period | None) -> list[_Class]:
    if period is None:
        return [_Class(1, [0], measured)]
    return [
        _Class(
            period.modulus,
            c.remainders,
            [m for m in measured if m.d % period.modulus in c.remainders],
        )
        for c in period.classes
    ]


def _settled(d: list[int], period: Period | None) -> int:
    if period is None:
        return d[-1]
    best = period.classes[0].remainders
    return max(size for size in d if size % period.modulus in best)


def _stands(cliff: Cliff, floor: float) -> bool:
    told = cliff.paired
    return told is None or told.bear_out(cliff.before, cliff.after, cliff.jump, floor)


def _cliffs(c: _Class, floor: float, paired: Mapping[tuple[int, int], Paired]) -> list[Cliff]:
    found = detect.edges(
        [m.d for m in c.members],
        [m.median_us for m in c.members],
        [m.low_us for m in c.members],
        [m.high_us for m in c.members],
        floor,
    )
    at = {m.d: m for m in c.members}
    return [
        Cliff(
            before=edge.before,
            after=edge.after,
            jump=round(edge.jump, 4),
            low=round(edge.low, 4),
            high=round(edge.high, 4),
            modulus=c.modulus,
            remainders=c.remainders,
            cause=_cause(at[edge.before], at[edge.after]),
            paired=paired.get((edge.before, edge.after)),
        )
        for edge in found
    ]


def _cause(before: Measured, after: Measured) -> str | None:
    """Another mechanism, else another kernel of the same one, else none that names can tell."""
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
    name = label(axis, c.modulus, c.remainders)
    return [
        Tier(
            name=name,
            first=stretch[0].d,
            last=stretch[-1].d,
            modulus=c.modulus,
            remainders=c.remainders,
            mechanism=stretch[0].mechanism,
            median_us=_rounded(median(m.median_us for m in stretch)),
        )
        for stretch in stretches
    ]
