"""A question to a map, and its answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from math import inf, log
from typing import Any, Literal

from gacprof.cliffmap.detect import NORMAL_95
from gacprof.cliffmap.schema import Curve
from gacprof.cliffmap.selection import flag_distance
from gacprof.core.points import Flag


@dataclass(frozen=True)
class Lookup:
    """A latency with its bounds (None where the source gives none) and where it comes from.

    ``kind`` is ``exact`` for a measured point, else ``scaled``. ``source`` names the curve
    and what was done.
    """

    latency_us: float
    low_us: float | None
    high_us: float | None
    kind: Literal["exact", "scaled"]
    source: str
    unbounded: bool = False
    """Measured, but too seldom for bounds: its error may be anything."""

    @property
    def error(self) -> float | None:
        """The relative standard error beside the curve's other dims: infinite where the point was
        measured too seldom, None where the source gives no spread at all."""
        if self.unbounded:
            return inf
        if self.low_us is None or self.high_us is None:
            return None
        return log(self.high_us / self.low_us) / (2 * NORMAL_95)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def times(self, factor: float, source: str) -> Lookup:
        """This latency scaled, with what was done added to its source."""
        low = None if self.low_us is None else self.low_us * factor
        high = None if self.high_us is None else self.high_us * factor
        told = f"{self.source}, {source}"
        return Lookup(self.latency_us * factor, low, high, "scaled", told, self.unbounded)


@dataclass(frozen=True)
class Query:
    """All dims of an operator, spelt out; flags only as far as they were asked for."""

    operator: str
    dims: dict[str, int]
    dtype: str
    flags: Mapping[str, Flag]

    def but(self, axis: str) -> dict[str, int]:
        """The dims without one."""
        return {name: size for name, size in self.dims.items() if name != axis}

    def key(self, axis: str) -> tuple[Any, ...]:
        """What curves over ``axis`` that run through this point have in common."""
        return self.operator, axis, self.dtype, tuple(sorted(self.but(axis).items()))

    @cached_property
    def point_key(self) -> tuple[Any, ...]:
        return self.operator, self.dtype, tuple(sorted(self.dims.items()))

    def distance(self, flags: Mapping[str, Flag]) -> tuple[int, int] | None:
        return flag_distance(self.operator, flags, self.flags)


def curve_key(curve: Curve) -> tuple[Any, ...]:
    return curve.operator, curve.axis, curve.dtype, tuple(sorted(curve.fixed.items()))
