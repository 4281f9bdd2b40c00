"""A map beside another map, or beside the machine at hand (``gacprof map diff`` and ``check``).

Two maps are of two devices, or of one before and after an upgrade. A cliff of one map is looked
for at the same two dims of the other, so that maps with different periods can be compared; what
the other map did not measure there is said to be unknown, not gone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from math import log1p
from statistics import median
from typing import Any, ClassVar, Literal

from gacprof.cliffmap.map import CliffMap
from gacprof.cliffmap.schema import Cliff, Curve
from gacprof.core.files import Record
from gacprof.core.formatting import Framed
from gacprof.core.points import Environment

MOVED_WITHIN = 0.1
"""A cliff in the same direction within this fraction of the dim is the old one, moved."""

ChangeKind = Literal["gone", "new", "moved", "larger", "smaller", "unknown"]


@dataclass(frozen=True)
class CliffChange:
    """What became of one cliff. Jumps are fractions, with bounds from the latencies' intervals.

    ``significant`` is whether the bounds of the two jumps, widened by both noise floors, do
    not overlap. For ``moved``, ``before`` and ``after`` are the old place, ``to`` the new.
    """

    verdict: ChangeKind
    before: int
    after: int
    jump_a: float | None
    jump_b: float | None
    significant: bool
    to: tuple[int, int] | None = None


@dataclass(frozen=True)
class CurveDiff:
    """One curve in both maps. ``ratio`` is the median of latency(B) / latency(A) over the dims
    that both measured, None without any; the lists of dims are about those only."""

    curve: str
    ratio: float | None
    common: int
    period_a: int | None
    period_b: int | None
    frontier_lost: list[int]
    frontier_gained: list[int]
    safe_lost: list[int]
    safe_gained: list[int]
    cliffs: list[CliffChange]


@dataclass(frozen=True)
class MapDiff(Framed, Record):
    """``only_a`` and ``only_b`` name the curves that the other map lacks."""

    derived: ClassVar = ("differs",)

    a: str
    b: str
    floor: float
    curves: list[CurveDiff]
    only_a: list[str]
    only_b: list[str]

    @property
    def differs(self) -> bool:
        """Whether any cliff is significantly gone, new, moved or of another size."""
        return any(c.significant for curve in self.curves for c in curve.cliffs)

    def frame_rows(self) -> Iterator[dict[str, Any]]:
        """A row for each cliff; a curve without one has a row of its own."""
        for curve in self.curves:
            about = {"curve": curve.curve, "ratio": curve.ratio, "common": curve.common}
            for cliff in curve.cliffs:
                yield about | vars(cliff)
            if not curve.cliffs:
                yield about

    def frame_title(self) -> str:
        return f"{self.a} → {self.b}: {'they differ' if self.differs else 'no difference shown'}"


def diff(a: CliffMap, b: CliffMap) -> MapDiff:
    """From ``a`` to ``b``. Curves are matched by operator, axis, dtype, flags and fixed dims."""
    old = {curve.identity: curve for curve in a.curves}
    new = {curve.identity: curve for curve in b.curves}
    return MapDiff(
        a=a.name,
        b=b.name,
        floor=max((c.floor for c in [*a.curves, *b.curves]), default=0.0),
        curves=[_curve(old[name], new[name]) for name in old if name in new],
        only_a=[name for name in old if name not in new],
        only_b=[name for name in new if name not in old],
    )


def _curve(a: Curve, b: Curve) -> CurveDiff:
    common = set(a.points.d) & set(b.points.d)
    in_a, in_b = _latencies(a), _latencies(b)
    ratios = [in_b[d][1] / in_a[d][1] for d in common]

    def lost(x: list[int], y: list[int]) -> list[int]:
        return sorted((set(x) - set(y)) & common)

    return CurveDiff(
        curve=a.identity,
        ratio=round(median(ratios), 4) if ratios else None,
        common=len(common),
        period_a=a.period.modulus if a.period else None,
        period_b=b.period.modulus if b.period else None,
        frontier_lost=lost(a.frontier, b.frontier),
        frontier_gained=lost(b.frontier, a.frontier),
        safe_lost=lost(a.safe, b.safe),
        safe_gained=lost(b.safe, a.safe),
        cliffs=_changes(a, b),
    )


_Bounds = tuple[float, float, float]  # latency in µs: low, middle, high


def _latencies(curve: Curve) -> dict[int, _Bounds]:
    p = curve.points
    return {
        d: (middle if low is None else low, middle, middle if high is None else high)
        for d, middle, low, high in zip(p.d, p.latency_us, p.low_us, p.high_us, strict=True)
    }


def _changes(a: Curve, b: Curve) -> list[CliffChange]:
    """Cliffs of either map that are not alike in the other; those that moved are paired up."""
    floor = a.floor + b.floor
    in_a, in_b = _latencies(a), _latencies(b)
    of_a, of_b = ({(c.before, c.after) for c in curve.cliffs} for curve in (a, b))
    backwards = [(cliff, _change(cliff, in_a, floor, of_a)) for cliff in b.cliffs]
    new = [(cliff, change) for cliff, change in backwards if change.verdict == "gone"]
    found = []
    for cliff in a.cliffs:
        change = _change(cliff, in_b, floor, of_b)
        match = next((pair for pair in new if _same_but_moved(cliff, pair[0])), None)
        if change.verdict == "gone" and match is not None:
            new.remove(match)
            to, back = match
            both = change.significant and back.significant
            there = to.before, to.after
            change = replace(change, verdict="moved", jump_b=to.jump, significant=both, to=there)
        if change.verdict in ("gone", "moved", "unknown") or change.significant:
            found.append(change)
    found += [replace(c, verdict="new", jump_a=c.jump_b, jump_b=c.jump_a) for _, c in new]
    return sorted(found, key=lambda change: (change.before, change.after))


def _change(
    cliff: Cliff, there: Mapping[int, _Bounds], floor: float, cliffs: Collection[tuple[int, int]]
) -> CliffChange:
    """The cliff's own two dims in the other map, whose ``cliffs`` are (before, after). ``gone`` if
    there is no such jump there."""
    if cliff.before not in there or cliff.after not in there:
        return CliffChange("unknown", cliff.before, cliff.after, cliff.jump, None, False)
    (low_0, middle_0, high_0), (low_1, middle_1, high_1) = there[cliff.before], there[cliff.after]
    jump = middle_1 / middle_0 - 1
    low, high = low_1 / high_0 - 1, high_1 / low_0 - 1
    significant = low - floor > cliff.high or high + floor < cliff.low
    kind: ChangeKind = "larger" if abs(jump) > abs(cliff.jump) else "smaller"
    flat = abs(log1p(jump)) <= log1p(floor / 2) and (cliff.before, cliff.after) not in cliffs
    if flat or jump * cliff.jump < 0:
        kind = "gone"
    return CliffChange(kind, cliff.before, cliff.after, cliff.jump, round(jump, 4), significant)


def _same_but_moved(old: Cliff, new: Cliff) -> bool:
    near = abs(new.after - old.after) <= MOVED_WITHIN * old.after
    return near and old.jump * new.jump > 0


DECISIVE = ("torch", "cuda", "cublas", "cudnn", "mkl", "onednn")
"""Components that choose kernels: another major or minor version makes a map stale."""

REPORTED = ("driver", "triton", "gacprof", "python")
"""Components whose change is worth knowing, but does not choose a kernel of the map."""


@dataclass(frozen=True)
class Mismatch:
    """One thing that differs. ``decisive`` ones make the map stale."""

    what: str
    map: str | None
    here: str | None
    decisive: bool


@dataclass(frozen=True)
class Compatibility(Record):
    """Whether a map of ``device`` holds for the machine ``here``: what differs between the two."""

    derived: ClassVar = ("stale",)

    map: str
    provenance: str
    device: str
    mismatches: list[Mismatch]
    here: Environment

    @property
    def stale(self) -> bool:
        return any(m.decisive for m in self.mismatches)

    @property
    def lines(self) -> list[str]:
        """One sentence a mismatch, the decisive ones first."""
        ordered = sorted(self.mismatches, key=lambda m: not m.decisive)
        return [
            f"{m.what}: the map is of {m.map or 'none'}, here is {m.here or 'none'}"
            + ("" if m.decisive else " (does not choose kernels)")
            for m in ordered
        ]


def check(cliff_map: CliffMap, here: Environment) -> Compatibility:
    """Compare the map's device and stack with an environment. A component that the map does
    not name (a published one names few) cannot mismatch."""
    there = cliff_map.environment
    device = (
        Mismatch("kind of device", there.kind, here.kind, True),
        Mismatch("device", there.name, here.name, True),
        Mismatch("architecture", there.arch, here.arch, True),
    )
    found = [mismatch for mismatch in device if mismatch.map != mismatch.here]
    for name in (*DECISIVE, *REPORTED):
        of_map, at_hand = there.stack.get(name), here.stack.get(name)
        if of_map and _release(name, of_map) != _release(name, at_hand):
            found.append(Mismatch(name, of_map, at_hand, name in DECISIVE))
    kind = cliff_map.file.provenance.kind
    return Compatibility(cliff_map.name, kind, there.name, found, here)


def _release(component: str, version: str | None) -> tuple[int, ...] | None:
    """Major and minor. cuDNN's number is one integer: 91002 is 9.10.2, 8907 is 8.9.7."""
    numbers = [int(n) for n in re.findall(r"\d+", version or "")]
    if component == "cudnn" and len(numbers) == 1:
        major_unit, minor_unit = (10000, 100) if numbers[0] >= 90000 else (1000, 100)
        return numbers[0] // major_unit, numbers[0] % major_unit // minor_unit
    return tuple(numbers[:2]) or None
