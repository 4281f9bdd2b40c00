"""What a source says of a dim's sizes, also beside given sizes of the dims that it is coupled with.

A rank of 131 and a width of 683 are N and K of one product, and PaLU's groups add up on one axis of
theirs. What a size costs then depends on the sizes of the others, so that it is judged beside them.
Where the source does not hold those products, it is judged beside the next multiples that it holds,
and no larger size that it does know beside the others may be faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gacprof.checkpoint.inventory import NEIGHBOUR_MULTIPLES, Dim, NewSizes
from gacprof.cliffmap.source import SizeCost
from gacprof.diagnosing.predict import LatencyProfile, Predictor
from gacprof.stats.judge import ALIGNMENT

LEAST_REACH = 32
"""How far sizes are looked for each way at least: a small dim has another tile beside it too (the
next multiple of AMX's 32 of K, say)."""


def around(dims: Sequence[Dim], window: float) -> tuple[int, int]:
    """The sizes within ±``window`` (a fraction) of any of these dims."""
    reach = {dim.size: max(LEAST_REACH, round(dim.size * window)) for dim in dims}
    low = min(size - far for size, far in reach.items())
    high = max(size + far for size, far in reach.items())
    return max(1, low), high


def _next(dim: Dim, multiple: int) -> int:
    return -(-dim.size // multiple) * multiple


@dataclass(frozen=True)
class Offer:
    """What the source says of one size: None where it does not know it. ``offered`` is whether a
    plan may choose the size, ``exact`` whether it was judged beside the very sizes asked for."""

    cost: SizeCost | None
    offered: bool
    exact: bool


@dataclass(frozen=True)
class ProfileAt:
    """A dim's profile beside certain sizes of others, and the sizes on offer there."""

    dim: Dim
    near: Predictor
    profile: LatencyProfile
    on_offer: frozenset[int]

    def holds(self, size: int) -> bool:
        return size in self.on_offer or bool(self.near.sizes(self.dim, size, size))

    def offer(self, size: int, also: tuple[int, ...], exact: bool) -> Offer:
        profile = self.profile
        if size not in profile.costs:  # beyond the window: a pin, say
            profile = self.near.profile(self.dim, size, size, also)
        return Offer(profile.costs.get(size), profile.offers(size, self.dim.size), exact)


class CoupledDims:
    """Judges dims of one inventory, each beside the sizes of the others, within ±``window``."""

    def __init__(self, predictor: Predictor, window: float) -> None:
        self.predictor, self.window = predictor, window
        self._of: dict[str, list[Dim]] = {}
        self._known: dict[object, ProfileAt] = {}
        self._offers: dict[object, Offer] = {}

    def of(self, dim: Dim) -> list[Dim]:
        """The other dims of the products that it feeds."""
        if dim.name not in self._of:
            inventory = self.predictor.inventory
            weights = dict.fromkeys(feed.weight for feed in dim.feeds)
            met = {other.name: other for weight in weights for other in inventory.fed_by(weight)}
            self._of[dim.name] = [other for name, other in met.items() if name != dim.name]
        return self._of[dim.name]

    def offer(
        self, dim: Dim, size: int, sizes: NewSizes | None = None, also: tuple[int, ...] = ()
    ) -> Offer:
        """What is said of ``size`` beside the others at ``sizes`` (those not named are as they are;
        None: multiplied out). ``also`` are sizes that may be looked up though the dim's own curves
        lack them."""
        others = {d.name: sizes.get(d.name, d.size) for d in self.of(dim)} if sizes else {}
        key = dim.name, size, tuple(others.items())
        if key not in self._offers:
            self._offers[key] = self._judged(dim, size, others, also)
        return self._offers[key]

    def _judged(self, dim: Dim, size: int, others: NewSizes, also: tuple[int, ...]) -> Offer:
        here = self.profile_at(dim, others, also)
        if here.on_offer and (size in (dim.size, *also) or here.holds(size)):
            found = here.offer(size, also, True)
            if found.cost is not None:
                return found
        for multiple in (*sorted(NEIGHBOUR_MULTIPLES, reverse=True), 1):
            there = self.profile_at(dim, self.rounded(dim, multiple), also)
            found = there.offer(size, also, False)
            if there.holds(size) and found.cost is not None:
                fair = found.offered and not self._beaten(here.near, there, size)
                return Offer(found.cost, fair, False)
        return Offer(None, False, False)

    def rounded(self, dim: Dim, multiple: int) -> dict[str, int | None]:
        """The dims that it meets, those that can be padded at their next multiple."""
        return {o.name: _next(o, multiple) for o in self.of(dim) if o.padding == "exact"}

    def aligned(self, dim: Dim) -> Predictor:
        """The predictor with the dims that it meets, where they can be padded, at their next
        multiples: of the source's period for them or of 32, else the first of 64 and 8 beside which
        the source holds the dim.

        ProfileAt odd ones only odd sizes would look safe, and all together none.
        """
        others = [o for o in self.of(dim) if o.padding == "exact"]
        steps = {o.name: p if (p := self.predictor.period(o)) > 1 else ALIGNMENT for o in others}
        near = self.predictor
        for multiples in (
            steps,
            *(dict.fromkeys(steps, m) for m in sorted(NEIGHBOUR_MULTIPLES, reverse=True)),
        ):
            near = self._at({o.name: _next(o, multiples[o.name]) for o in others})
            if near is self.predictor or near.sizes(dim, dim.size, dim.size):
                return near
        return near

    def _at(self, sizes: NewSizes) -> Predictor:
        size_of = self.predictor.inventory.dim
        changed = {name: size for name, size in sizes.items() if size != size_of(name).size}
        return self.predictor.with_sizes(changed) if changed else self.predictor

    def profile_at(
        self,
        dim: Dim,
        others: NewSizes,
        also: tuple[int, ...] = (),
        reach: tuple[int, int] | None = None,
    ) -> ProfileAt:
        """The dim's profile beside the others at these sizes, from the first size to the last of
        ``reach`` (by default within the window)."""
        size_of = self.predictor.inventory.dim
        changed = {name: size for name, size in others.items() if size != size_of(name).size}
        key = dim.name, tuple(changed.items()), also, reach
        if key not in self._known:
            near = self._at(others)
            low, high = reach or around([dim], self.window)
            profile, on_offer = near.profile(dim, low, high, also), near.sizes(dim, low, high)
            self._known[key] = ProfileAt(dim, near, profile, frozenset(on_offer))
        return self._known[key]

    def _beaten(self, near: Predictor, there: ProfileAt, size: int) -> bool:
        """Whether a larger size is known to be faster beside the very sizes asked for, though the
        source has no curve there."""
        own = near.dim(there.dim, size).latency_us
        if own is None:
            return False
        most = own / (1 + there.profile.tolerance)
        larger = (near.dim(there.dim, s) for s in there.on_offer if s > size)
        return any(
            e.latency_us is not None and not e.scaled and e.latency_us < most for e in larger
        )
