"""Several kinds of device side by side: sizes good on all of them, and what that costs each.

A model has dims that would have any size, and each is padded up to a size that is served well.
Where it is to run on one kind alone, that is the fastest safe size from there on; where it is to
run on all kinds, the fastest one that is safe on all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from math import prod
from typing import ClassVar

from gacprof.cliffmap import CliffMap
from gacprof.cliffmap.intersect import Intersection, check_different, intersect
from gacprof.cliffmap.schema import Curve
from gacprof.core.errors import MapError
from gacprof.core.files import Record


@dataclass(frozen=True)
class CurveOnKind:
    """One curve on one kind. ``loss`` is the mean over all sizes of the axis of the time at the
    size safe on all over that at the kind's own, − 1, ``worst`` the largest; None where no size is
    safe on all. ``usd`` is the price of a million tokens through this product at the sizes safe on
    all, None without a price and where the operator has no count of tokens."""

    safe: int
    loss: float | None
    worst: float | None
    usd: float | None


@dataclass(frozen=True)
class SharedCurve:
    """A curve that all kinds have: how many sizes in common, which are ``safe`` on all."""

    curve: str
    dims: int
    safe: list[int]
    kinds: dict[str, CurveOnKind]


@dataclass(frozen=True)
class Comparison(Record):
    """``kinds`` are the maps' names, ``prices`` in USD an hour. ``left`` are curves that not every
    map has."""

    derived: ClassVar = ("summary",)

    kinds: list[str]
    devices: dict[str, str]
    prices: dict[str, float]
    curves: list[SharedCurve]
    left: list[str]

    def loss(self, kind: str) -> float | None:
        """The mean over the curves."""
        known = [x for c in self.curves if (x := c.kinds[kind].loss) is not None]
        return sum(known) / len(known) if known else None

    def worst(self, kind: str) -> float | None:
        return max((x for c in self.curves if (x := c.kinds[kind].worst) is not None), default=None)

    def usd(self, kind: str) -> float | None:
        """A million tokens once through each of the products that have a price on every kind."""
        priced = [c for c in self.curves if all(c.kinds[k].usd is not None for k in self.prices)]
        if kind not in self.prices or not priced:
            return None
        return sum(c.kinds[kind].usd or 0.0 for c in priced)

    @property
    def summary(self) -> dict[str, dict[str, float | None]]:
        """By kind."""
        return {
            kind: {"loss": self.loss(kind), "worst": self.worst(kind), "usd": self.usd(kind)}
            for kind in self.kinds
        }


def compare(
    maps: Sequence[CliffMap],
    prices: Mapping[str, float] | None = None,
    operator: str | None = None,
    axis: str | None = None,
) -> Comparison:
    """All curves that all maps have, or those of an ``operator`` and ``axis``. ``prices`` (USD an
    hour) are by map name or pattern (``h100*``).

    Raises :class:`MapError` for fewer than two maps, a price of no map, and no curve
    in common.
    """
    check_different(maps, "a comparison")
    names = [m.name for m in maps]
    priced = _priced(names, prices or {})
    by_map = [{c.identity: c for c in m.curves} for m in maps]
    common = [
        [held[identity] for held in by_map]
        for identity, curve in by_map[0].items()
        if operator in (None, curve.operator)
        and axis in (None, curve.axis)
        and all(identity in held for held in by_map)
    ]
    found = [_shared(maps, own, priced) for own in common]
    curves = [curve for curve in found if curve is not None]
    if not curves:
        raise MapError(
            f"{' and '.join(names)} have no curve in common to compare: sweep the same suite on "
            "each (gacprof fleet sweep)"
        )
    kept = {curve.curve for curve in curves}
    left = sorted({identity for held in by_map for identity in held} - kept)
    devices = {m.name: m.environment.name for m in maps}
    return Comparison(names, devices, priced, curves, left if operator is None else [])


def _priced(names: Sequence[str], prices: Mapping[str, float]) -> dict[str, float]:
    found: dict[str, float] = {}
    for pattern, usd in prices.items():
        matching = [name for name in names if fnmatch(name, pattern)]
        if not matching:
            raise MapError(f"a price for '{pattern}', but the maps are {', '.join(names)}")
        found |= dict.fromkeys(matching, usd)
    return found


def _shared(
    maps: Sequence[CliffMap], own: Sequence[Curve], prices: Mapping[str, float]
) -> SharedCurve | None:
    """The curve on all maps; None where they measured no size in common."""
    curve = own[0]
    try:
        both = intersect(maps, curve.operator, curve.axis, curve.dtype, curve.flags, **curve.fixed)
    except MapError:
        return None
    kinds = {m.name: _on_kind(both, m.name, of_kind, prices.get(m.name))
             for m, of_kind in zip(maps, own, strict=True)}  # fmt: skip
    return SharedCurve(curve.identity, len(both.dims), both.safe, kinds)


def _on_kind(both: Intersection, kind: str, curve: Curve, price: float | None) -> CurveOnKind:
    latency = {dim.d: dim.latencies_us[kind] for dim in both.dims}
    safe = set(curve.safe) & latency.keys()
    shared, alone = dict(_padded(latency, set(both.safe))), dict(_padded(latency, safe))
    losses = [shared[d] / alone[d] - 1 for d in shared]
    if not losses:
        return CurveOnKind(len(safe), None, None, None)
    tokens, usd = _tokens(curve), None
    if tokens and price is not None:
        usd = sum(shared.values()) / len(shared) / 3.6e9 * price / tokens * 1e6
    return CurveOnKind(len(safe), sum(losses) / len(losses), max(losses), usd)


def _padded(latency: Mapping[int, float], safe: set[int]) -> Iterator[tuple[int, float]]:
    """By size, the time at the fastest safe size from there on; without sizes above the last."""
    best = float("inf")
    for d in sorted(latency, reverse=True):
        if d in safe:
            best = min(best, latency[d])
        if best < float("inf"):
            yield d, best


def _tokens(curve: Curve) -> int | None:
    """How many tokens one call serves: rows of a product, queries of an attention."""
    names = {"attention": ("batch", "q_len"), "experts": ("tokens",)}.get(curve.operator, ("M",))
    if any(name not in curve.fixed for name in names):
        return None
    return prod(curve.fixed[name] for name in names)
