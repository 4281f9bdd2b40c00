"""Dims that are good on several devices at once, for a model that is to run on all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gacprof.cliffmap.candidates import of_curve
from gacprof.cliffmap.map import CliffMap
from gacprof.errors import MapError
from gacprof.points import Flag


@dataclass(frozen=True)
class SharedDim:
    """One dim on all maps. ``worst_penalty`` is the largest of ``penalties``; both and
    ``latencies_us`` are by map name. ``safe`` means safe on every one."""

    d: int
    worst_penalty: float
    safe: bool
    penalties: dict[str, float]
    latencies_us: dict[str, float]


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
        sides = [
            ([dim for dim in self.dims if dim.d < d][::-1], below),
            ([dim for dim in self.dims if dim.d > d], above),
        ]
        found = [dim for dim in self.dims if dim.d == d and dim.safe]
        for side, count in sides:
            safe = [dim for dim in side if dim.safe][:count]
            found += safe or sorted(side, key=lambda dim: dim.worst_penalty)[: min(1, count)]
        return sorted(found, key=lambda dim: dim.d)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "safe": self.safe}


def intersect(
    maps: Sequence[CliffMap],
    operator: str,
    axis: str,
    dtype: str | None = None,
    flags: Mapping[str, Flag] | None = None,
    **fixed: int,
) -> Intersection:
    """The dims of one axis as all the maps judge them together.

    Raises :class:`MapError` for fewer than two maps, two of one name, or no dim in common;
    :class:`MapMiss` where a map has no such axis.
    """
    names = [m.name for m in maps]
    if len(set(names)) < max(2, len(names)):
        raise MapError(f"an intersection needs two maps of different names, not {names}")
    curves = {m.name: m.curve(operator, axis, dtype, flags, **fixed) for m in maps}
    judged = {name: {c.d: c for c in of_curve(curve)} for name, curve in curves.items()}
    common = sorted(set.intersection(*(set(by_dim) for by_dim in judged.values())))
    if not common:
        raise MapError(f"{' and '.join(names)} measured no {axis} of {operator} in common")
    dims = []
    for d in common:
        here = {name: by_dim[d] for name, by_dim in judged.items()}
        penalties = {name: candidate.penalty for name, candidate in here.items()}
        dims.append(
            SharedDim(
                d,
                max(penalties.values()),
                all(candidate.safe for candidate in here.values()),
                penalties,
                {name: candidate.latency_us for name, candidate in here.items()},
            )
        )
    return Intersection(operator, axis, {n: c.identity for n, c in curves.items()}, dims)
