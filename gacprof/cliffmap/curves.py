"""From the measured columns of one axis to a :class:`~gacprof.cliffmap.schema.Curve`."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, isfinite
from statistics import median

from gacprof.cliffmap import detect
from gacprof.cliffmap.judge import TOLERANCE, judge, known_errors, settled_dims
from gacprof.cliffmap.periods import find_period
from gacprof.cliffmap.schema import Cliff, Coverage, Curve, Points, Tier
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
    errors = known_errors([m.error for m in measured])
    floor = round(detect.cliff_floor(errors), 6)
    period = find_period(dims, latency, floor)
    settled = settled_dims(dims, latency, period, tolerance)
    judged = judge(latency, errors, tolerance, settled)
    by_verdict = {v: [d for d, own in zip(dims, judged.verdict, strict=True) if own == v]
                  for v in ("safe", "misaligned")}  # fmt: skip
    cliffs: list[Cliff] = []
    tiers: list[Tier] = []
    modulus = period.modulus if period else 1
    for remainders in [c.remainders for c in period.classes] if period else [[0]]:
        members = [m for m in measured if m.d % modulus in remainders]
        within = _cliffs(members, modulus, remainders, looked_at=len(measured) - 1)
        cliffs += within
        tiers += _tiers(members, axis.axis, modulus, remainders, {c.after for c in within})
    mechanisms = sorted({m.mechanism for m in measured if m.mechanism})
    kernels = sorted({m.kernels for m in measured if m.kernels})
    last = max((d for d, yes in zip(dims, settled, strict=True) if yes), default=0)
    asked = [*dims, *failed]
    return Curve(
        operator=axis.operator,
        axis=axis.axis,
        fixed=dict(sorted(axis.fixed.items())),
        dtype=axis.dtype,
        flags=dict(sorted(axis.flags.items())),
        timer=axis.timer,
        points=Points(
            d=dims,
            median_us=[_rounded(us) for us in latency],
            low_us=[_bound(m, -1) for m in measured],
            high_us=[_bound(m, 1) for m in measured],
            count=[m.count for m in measured],
            penalty_low=[_rounded(p) for p in judged.low.tolist()],
            penalty_high=[_rounded(p) if isfinite(p) else None for p in judged.high.tolist()],
            mechanism=_places([m.mechanism for m in measured], mechanisms),
            kernels=_places([m.kernels for m in measured], kernels),
        ),
        mechanisms=mechanisms,
        kernels=[list(names) for names in kernels],
        period=period,
        tiers=tiers,
        cliffs=sorted(cliffs, key=lambda c: c.before),
        frontier=detect.frontier_of(dims, latency, settled, judged.verdict, floor),
        **by_verdict,
        floor=floor,
        tolerance=tolerance,
        coverage=Coverage(
            first=min(asked), last=max(asked), measured=len(measured), settled=last,
            unsettled=[d for d, yes in zip(dims, settled, strict=True) if d < last and not yes],
            failed=failed,
        ),
    )  # fmt: skip


def _places(column: Sequence[Hashable], listed: Sequence[Hashable]) -> list[int | None]:
    """Where each entry stands in the list, None for one that is not there; empty for no list."""
    at = {name: i for i, name in enumerate(listed)}
    return [at.get(entry) for entry in column] if listed else []


def _bound(m: Measured, side: int) -> float | None:
    """The end of the latency's 95 % interval, beside the curve's other dims."""
    if m.error is None or not isfinite(m.error):
        return None
    return _rounded(m.us * exp(side * detect.NORMAL_95 * m.error))


def _rounded(value: float) -> float:
    """Six significant digits: far below any timer's resolution, and half the file's size."""
    return float(f"{value:.6g}")


def _cliffs(
    members: Sequence[Measured], modulus: int, remainders: list[int], looked_at: int
) -> list[Cliff]:
    """Those within one residue class; ``looked_at`` edges are those of the whole curve."""
    at = {m.d: m for m in members}
    errors = known_errors([m.error for m in members])
    found = detect.edges(list(at), [m.us for m in members], errors, looked_at)
    where = {"modulus": modulus, "remainders": remainders}
    return [c.model_copy(update={**where, "cause": _cause(at[c.before], at[c.after])})
            for c in found]  # fmt: skip


def _cause(before: Measured, after: Measured) -> str | None:
    """Another mechanism, else another kernel of the same one; None where kernels are unknown."""
    if before.mechanism is None or after.mechanism is None:
        return None
    if before.mechanism != after.mechanism:
        return f"{before.mechanism} → {after.mechanism}"
    if before.kernels != after.kernels:
        return f"another kernel of {before.mechanism}"
    return "same kernel"


def _tiers(
    members: Sequence[Measured], axis: str, modulus: int, remainders: list[int], edges: set[int]
) -> list[Tier]:
    """Stretches of a residue class between cliffs and between changes of mechanism."""
    stretches: list[list[Measured]] = []
    for m in members:
        if not stretches or m.d in edges or m.mechanism != stretches[-1][-1].mechanism:
            stretches.append([])
        stretches[-1].append(m)
    name = detect.label(axis, modulus, remainders)
    return [
        Tier(
            name=name, first=stretch[0].d, last=stretch[-1].d, modulus=modulus,
            remainders=remainders, mechanism=stretch[0].mechanism,
            median_us=_rounded(median(m.us for m in stretch)),
        )
        for stretch in stretches
    ]  # fmt: skip
