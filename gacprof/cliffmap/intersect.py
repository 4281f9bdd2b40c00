"""Dims that are good on several devices at once, for a model that is to run on all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gacprof.cliffmap.candidates import Candidate, Use, choose, of_curve
from gacprof.cliffmap.judge import Verdict
from gacprof.cliffmap.map import CliffMap
from gacprof.cliffmap.selection import best
from gacprof.core.errors import MapError
from gacprof.core.points import Flag


@dataclass(frozen=True)
class SharedDim:
    """One dim on all maps. ``worst_penalty`` is the largest of ``penalties``, at most
    ``penalty_high`` (None where that is open on one); ``penalties`` and ``latencies_us`` are by
    map name. Its ``verdict`` is ``safe`` where it is safe on every one, ``misaligned`` where it is
    so on any, by the narrowest ``tolerance`` of the maps."""

    d: int
    worst_penalty: float
    verdict: Verdict
    penalties: dict[str, float]
    latencies_us: dict[str, float]
    penalty_high: float | None
    tolerance: float

    @property
    def safe(self) -> bool:
        return self.verdict == "safe"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"safe": self.safe}


@dataclass(frozen=True)
class Intersection:
    """One axis on several maps; only dims that each of them measured. ``curves`` by map name."""

    operator: str
    axis: str
    curves: dict[str, str]
    dims: list[SharedDim]

    @property
    def safe(self) -> list[int]:
        return [dim.d for dim in self.dims if dim.safe]

    def least_worst(self, count: int = 1) -> list[SharedDim]:
        """The dims with the smallest worst-case penalty, widest first among equals."""
        return sorted(self.dims, key=lambda dim: (dim.worst_penalty, -dim.d))[:count]

    def near(self, d: int, below: int = 2, above: int = 2) -> list[SharedDim]:
        """Dims safe on all maps around ``d``; on a side without any, the least worst one."""
        return self.choose(d, below=below, above=above)

    def choose(
        self,
        near: int,
        *,
        below: int | None = None,
        above: int | None = None,
        window: int | tuple[int, int] | None = None,
        count: int | None = None,
        safe_only: bool = True,
    ) -> list[SharedDim]:
        """As :func:`gacprof.cliffmap.candidates.choose`; on a side that has no dim safe on all
        maps, the one with the least worst case instead."""
        found = choose(
            self.dims, near,
            below=below, above=above, window=window, count=count, safe_only=safe_only,
        )  # fmt: skip
        everything = choose(self.dims, near, window=window, safe_only=False)
        sides = (
            (below, lambda d: d < near),
            (above, lambda d: d > near),
        )
        for most, here in sides:
            dims = [dim for dim in everything if here(dim.d)]
            if most != 0 and not any(dim.safe for dim in dims) and safe_only:
                found += sorted(dims, key=lambda dim: (dim.worst_penalty, abs(dim.d - near)))[:1]
        return sorted(found, key=lambda dim: dim.d)

    def as_dict(self) -> dict[str, Any]:
        dims = [dim.as_dict() for dim in self.dims]
        return {**asdict(self), "dims": dims, "safe": self.safe}


def intersect(
    maps: Sequence[CliffMap],
    operator: str,
    axis: str,
    dtype: str | None = None,
    flags: Mapping[str, Flag] | None = None,
    *,
    near: int | None = None,
    **fixed: int,
) -> Intersection:
    """The dims of one axis as all the maps judge them together.

    Where other dims are left open, those are taken at which every map has a curve, if any;
    curves that cover ``near`` are preferred.
    Raises :class:`MapError` for fewer than two maps, two of one name, or no dim in common;
    :class:`MapMiss` where a map has no such axis.
    """
    _check(maps)
    shared = _shared_fixed(maps, operator, axis, dtype, flags, near, fixed) or fixed
    curves = {m.name: m.curve(operator, axis, dtype, flags, near=near, **shared) for m in maps}
    judged = {name: of_curve(curve) for name, curve in curves.items()}
    identities = {name: curve.identity for name, curve in curves.items()}
    return _together(operator, axis, identities, judged)


def intersect_uses(maps: Sequence[CliffMap], uses: Sequence[Use]) -> Intersection:
    """One dim of several operators (:meth:`CliffMap.joint_candidates`) on several maps."""
    _check(maps)
    judged = {m.name: m.judge_jointly(uses) for m in maps}
    operators, axes = (" + ".join(dict.fromkeys(n)) for n in zip(
        *((use.operator, use.axis) for use in uses), strict=True))  # fmt: skip
    return _together(operators, axes, {name: f"{len(uses)} uses" for name in judged}, judged)


def _check(maps: Sequence[CliffMap]) -> None:
    names = [m.name for m in maps]
    if len(set(names)) < max(2, len(names)):
        raise MapError(
            f"an intersection needs two maps of different names, not {', '.join(names) or 'none'} "
            "(gacprof map build has --name)"
        )


def _shared_fixed(
    maps: Sequence[CliffMap],
    operator: str,
    axis: str,
    dtype: str | None,
    flags: Mapping[str, Flag] | None,
    near: int | None,
    fixed: Mapping[str, int],
) -> dict[str, int]:
    """The other dims of the first map's best curve among those that all maps have; else none."""
    curves = [m.select(operator, axis, dtype, flags, **fixed) for m in maps]
    everywhere = [[c.fixed for c in of_map] for of_map in curves]
    common = [c for c in curves[0] if all(c.fixed in there for there in everywhere)]
    chosen = best(common, near)
    return dict(chosen.fixed) if chosen else {}


def _together(
    operator: str, axis: str, curves: dict[str, str], judged: Mapping[str, Sequence[Candidate]]
) -> Intersection:
    by_dim = {name: {c.d: c for c in candidates} for name, candidates in judged.items()}
    common = sorted(set.intersection(*(set(known) for known in by_dim.values())))
    if not common:
        spans = (f"{name} has {min(known)} to {max(known)}" for name, known in by_dim.items())
        raise MapError(
            f"{' and '.join(curves)} measured no {axis} of {operator} in common: {', '.join(spans)}"
        )
    dims = []
    for d in common:
        here = {name: known[d] for name, known in by_dim.items()}
        penalties = {name: candidate.penalty for name, candidate in here.items()}
        dims.append(
            SharedDim(
                d,
                max(penalties.values()),
                _joint([candidate.verdict for candidate in here.values()]),
                penalties,
                {name: candidate.latency_us for name, candidate in here.items()},
                _highest([candidate.penalty_high for candidate in here.values()]),
                min(candidate.tolerance for candidate in here.values()),
            )
        )
    return Intersection(operator, axis, curves, dims)


def _joint(verdicts: Sequence[Verdict]) -> Verdict:
    if "misaligned" in verdicts:
        return "misaligned"
    return "undecided" if "undecided" in verdicts else "safe"


def _highest(bounds: Sequence[float | None]) -> float | None:
    known = [bound for bound in bounds if bound is not None]
    return max(known) if len(known) == len(bounds) else None
