"""Dims that are good on several devices at once, for a model that is to run on all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Unpack

from gacprof.cliffmap.candidates import Limits, choose, of_curve
from gacprof.cliffmap.map import CliffMap
from gacprof.cliffmap.request import EACH_SIDE
from gacprof.cliffmap.selection import best, refuse_ambiguity
from gacprof.cliffmap.source import Candidate, JudgedDim, SizeSource, Use
from gacprof.core.errors import MapError
from gacprof.core.files import Record
from gacprof.core.formatting import Framed
from gacprof.core.points import MAX_DIM, Flag
from gacprof.stats.findings import Verdict


@dataclass(frozen=True)
class SharedDim(JudgedDim):
    """One dim on all maps.

    ``worst_penalty`` is the largest of ``penalties``, at most ``penalty_high`` (None where that is
    open on one); ``penalties`` and ``latencies_us`` are by map name. Its ``verdict`` is ``safe``
    where it is safe on every one, ``misaligned`` where it is so on any, by the narrowest
    ``tolerance`` of the maps. Rule tables count for the verdict alone: ``tiers`` has theirs.
    """

    d: int
    worst_penalty: float | None
    verdict: Verdict
    penalties: dict[str, float]
    latencies_us: dict[str, float]
    penalty_high: float | None
    tolerance: float
    tiers: dict[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        found = super().as_dict()
        if not self.tiers:
            del found["tiers"]
        return found


@dataclass(frozen=True)
class Intersection(Record, Framed):
    """One axis on several maps; only dims that each of them measured. ``curves`` by map name.
    ``found`` are those to choose from: around ``near`` where that was asked."""

    derived: ClassVar = ("safe", "found")

    operator: str
    axis: str
    curves: dict[str, str]
    dims: list[SharedDim]
    near: int | None = None

    def frame_rows(self) -> Iterator[dict[str, Any]]:
        return (dim.as_dict() for dim in self.dims)

    def frame_title(self) -> str:
        return f"{self.operator} {self.axis} on {', '.join(self.curves)}"

    @property
    def safe(self) -> list[int]:
        return [dim.d for dim in self.dims if dim.safe]

    def least_worst(self, count: int = 1) -> list[SharedDim]:
        """The dims with the smallest worst-case penalty, widest first among equals. One at an end
        of a curve, whose penalty is open, has no rank."""
        ranked = [dim for dim in self.dims if _ranked(dim)]
        return sorted(ranked, key=lambda dim: (*_badness(dim), -dim.d))[:count]

    @property
    def found(self) -> list[SharedDim]:
        """Dims safe on all maps; around ``near`` a few, on a side without any the least worst one.
        Where none is safe, those with the least worst case."""
        if self.near is not None:
            return self.choose(self.near, below=EACH_SIDE, above=EACH_SIDE)
        safe = [dim for dim in self.dims if dim.safe]
        return safe or sorted(self.least_worst(2 * EACH_SIDE), key=lambda dim: dim.d)

    def choose(self, near: int, **limits: Unpack[Limits]) -> list[SharedDim]:
        """As :func:`gacprof.cliffmap.candidates.choose`; on a side that has no dim safe on all
        maps, the one with the least worst case instead.

        Raises :class:`MapError` where the maps have no dims in common around ``near``."""
        first, last = self.dims[0].d, self.dims[-1].d
        if not first <= near <= last:
            names = " and ".join(self.curves)
            raise MapError(
                f"{names} have {self.axis} of {self.operator} in common from {first} to {last}, "
                f"not near {near}"
            )
        found = choose(self.dims, near, **limits)
        if not limits.get("safe_only", True):
            return found
        everything = choose(self.dims, near, window=limits.get("window"), safe_only=False)
        lower = [dim for dim in everything if dim.d < near]
        upper = [dim for dim in everything if dim.d > near]
        for most, dims in ((limits.get("below"), lower), (limits.get("above"), upper)):
            if most != 0 and not any(dim.safe for dim in dims):
                ranked = [dim for dim in dims if _ranked(dim)]
                found += sorted(ranked, key=lambda dim: (*_badness(dim), abs(dim.d - near)))[:1]
        return sorted(found, key=lambda dim: dim.d)


def _ranked(dim: SharedDim) -> bool:
    return dim.penalty_high is not None or not dim.penalties


def _badness(dim: SharedDim) -> tuple[float, float]:
    """Tiers by rules first: what a worse one costs is not known."""
    return sum(dim.tiers.values()), dim.worst_penalty or 0.0


def intersect(
    maps: Sequence[SizeSource | str | Path],
    operator: str,
    axis: str,
    dtype: Any = None,
    flags: Mapping[str, Flag] | None = None,
    *,
    near: int | None = None,
    shards: int = 1,
    **fixed: int,
) -> Intersection:
    """The dims of one axis as all the maps and rule tables judge them together.

    Where other dims are left open, those are taken at which every map has a curve, if any;
    curves that cover ``near`` are preferred. Each of ``shards`` ranks holds its part of the dim.
    Raises :class:`MapError` for fewer than two sources, two of one name, no dim in common, or one
    map beside rule tables of which several curves answer;
    :class:`MapLookupError` where a map has no such axis.
    """
    for wrong in (m for m in maps if not isinstance(m, str | Path) and not hasattr(m, "view")):
        raise MapError(f"{wrong!r} is no source of sizes: give a map or a rule table")
    sources: list[Any] = [CliffMap.load(m) if isinstance(m, str | Path) else m for m in maps]
    check_different(sources, "an intersection")
    measured = {m.name: m for m in sources if not m.any_size}
    if not measured:
        raise MapError("an intersection needs one measured map at least, for the dims to compare")
    first, *others = (m.select(operator, axis, dtype, flags, **fixed) for m in measured.values())
    sizes = [[curve.fixed for curve in of_map] for of_map in others]
    length = None if near is None else max(1, near // shards)
    shared = best([curve for curve in first if all(curve.fixed in s for s in sizes)], length)
    at = shared.fixed if shared else fixed
    curves = {
        name: m.curve(operator, axis, dtype, flags, near=length, **at)
        for name, m in measured.items()
    }
    judged = {name: of_curve(curve, shards) for name, curve in curves.items()}
    identities = {name: curve.identity for name, curve in curves.items()}
    one = next(iter(curves.values()))
    if len(measured) == 1:
        refuse_ambiguity(first, length)
    use = Use(operator, at or one.fixed, axis, one.dtype, one.flags, shards=shards)
    dims = [candidate.d for candidate in next(iter(judged.values()))]
    for source in sources:
        if source.name not in curves:
            judged[source.name] = source.judge_jointly([use], dims[0], dims[-1])
            held = ", ".join(source.dtypes)
            other = "" if one.dtype in source.dtypes else f", the table is of {held}"
            identities[source.name] = f"{source.basis}, judged in {one.dtype}{other}"
    ordered = {m.name: judged[m.name] for m in sources}
    return _together(operator, axis, {name: identities[name] for name in ordered}, ordered, near)


def intersect_uses(maps: Sequence[SizeSource], uses: Sequence[Use]) -> Intersection:
    """One dim of several operators (:meth:`CliffMap.joint_candidates`) on several maps."""
    check_different(maps, "an intersection")
    judged: dict[str, Sequence[Candidate]] = {
        m.name: m.judge_jointly(uses, 1, MAX_DIM) for m in maps if not m.any_size
    }
    dims = [c.d for candidates in judged.values() for c in candidates]
    for m in maps:
        if m.name not in judged:
            judged[m.name] = m.judge_jointly(uses, min(dims, default=1), max(dims, default=256))
    operators = " + ".join(dict.fromkeys(use.operator for use in uses))
    axes = " + ".join(dict.fromkeys(use.axis for use in uses))
    return _together(operators, axes, {name: f"{len(uses)} uses" for name in judged}, judged)


def check_different(maps: Sequence[SizeSource], what: str) -> None:
    """Raises :class:`MapError` for fewer than two maps, and for two of one name."""
    names = [m.name for m in maps]
    if len(set(names)) < max(2, len(names)):
        raise MapError(
            f"{what} needs two maps of different names, not {', '.join(names) or 'none'} "
            "(gacprof map build has --name)"
        )


def _together(
    operator: str, axis: str, curves: dict[str, str], judged: Mapping[str, Sequence[Candidate]],
    near: int | None = None,
) -> Intersection:  # fmt: skip
    by_dim = {name: {c.d: c for c in candidates} for name, candidates in judged.items()}
    common = sorted(set.intersection(*(set(known) for known in by_dim.values())))
    if not common:
        spans = (f"{name} has {min(known)} to {max(known)}" for name, known in by_dim.items())
        raise MapError(
            f"{' and '.join(curves)} measured no {axis} of {operator} in common: {', '.join(spans)}"
        )
    dims = [_shared({name: known[d] for name, known in by_dim.items()}) for d in common]
    return Intersection(operator, axis, curves, dims, near)


def _shared(candidates: Mapping[str, Candidate]) -> SharedDim:
    """One dim by its candidate on each map."""
    timed = {name: c for name, c in candidates.items() if c.latency_us is not None}
    verdicts = {c.verdict for c in candidates.values()}
    worst_first: tuple[Verdict, ...] = ("misaligned", "undecided")
    bounds = [c.penalty_high for c in timed.values() if c.penalty_high is not None]
    return SharedDim(
        d=next(iter(candidates.values())).d,
        worst_penalty=max((c.penalty or 0.0 for c in timed.values()), default=None),
        verdict=next((v for v in worst_first if v in verdicts), "safe"),
        penalties={name: c.penalty or 0.0 for name, c in timed.items()},
        latencies_us={name: c.latency_us or 0.0 for name, c in timed.items()},
        penalty_high=max(bounds) if bounds and len(bounds) == len(timed) else None,
        tolerance=min((t for c in timed.values() if (t := c.tolerance) is not None), default=0.0),
        tiers={name: c.tier for name, c in candidates.items() if c.tier is not None},
    )
