"""Dims that meet in one product hide each other's cliffs: each is judged beside the others' sizes.

A rank of 131 and a width of 683 are K and N of one product. While both are odd, the product is slow
at every size that either could take alone, and each looks as good as it can be. What a dim costs
once the others are aligned shows only beside their new sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gacprof.checkpoint.inventory import BESIDE, Dim, Inventory
from gacprof.diagnosing.predict import Predictor


@dataclass(frozen=True)
class Sizes:
    """The sizes of other dims that a dim is judged beside, by name: of those ``along`` the same
    axis of a product and those ``across`` it. Others are as they are."""

    along: Mapping[str, int] = field(default_factory=dict)
    across: Mapping[str, int] = field(default_factory=dict)


def aligned_across(inventory: Inventory, held: Mapping[str, int] | None = None) -> Sizes:
    """Every dim that can be padded at its next multiple of 64 for those across a product, except
    where it is ``held`` at a size: what dims are judged beside before any is chosen. Two odd dims
    that are good as they are beside each other may both gain by being aligned together."""
    most = max(BESIDE)
    free = [dim for dim in inventory.dims if dim.padding == "exact"]
    return Sizes({}, {d.name: -(-d.size // most) * most for d in free} | dict(held or {}))


def companions(
    inventory: Inventory, members: Sequence[Dim], judged: Sequence[Dim], *, crossing: bool
) -> list[Dim]:
    """Dims beside the ``judged`` in any product that ``members`` feed: those on the same axis, as
    PaLU's groups add up on N, or with ``crossing`` those on the other axis, as a width meets the
    ranks of its factors."""
    names = {dim.name for dim in judged}
    found: dict[str, Dim] = {}
    for dim in members:
        for feed in dict.fromkeys(dim.feeds):
            for other in inventory.fed_by(feed.weight):
                same = other.kind == dim.kind and feed in other.feeds
                if other.name not in names and same != crossing:
                    found[other.name] = other
    return list(found.values())


def beside(
    predictor: Predictor,
    members: Sequence[Dim],
    judged: Sequence[Dim],
    sizes: Sizes | None = None,
) -> Predictor:
    """The predictor with the companions of the ``judged`` at ``sizes``, by name.

    One on the same axis that has none is at the next multiple of the period that the map found
    for it, or of 8: beside odd ones only odd sizes would look safe, and all together none. Where
    the map does not hold the products beside the new sizes on the other axis, those take the
    next multiples of 64 or 8 that it holds, else they stay as they are.
    """
    sizes = sizes or Sizes()
    aligned = {}
    for other in companions(predictor.inventory, members, judged, crossing=False):
        period = predictor.period(other) if predictor.period(other) > 1 else BESIDE[0]
        aligned[other.name] = sizes.along.get(other.name, -(-other.size // period) * period)
    changed = changed_across(predictor.inventory, members, judged, sizes.across)
    if changed:
        now = {name: predictor.inventory.dim(name).size for name in changed}
        rounded = [{n: -(-d // m) * m for n, d in now.items()} for m in sorted(BESIDE)[::-1]]
        for across in (changed, *rounded):
            near = predictor.beside(aligned | across)
            if holds(near, judged):
                return near
    return predictor.beside(aligned) if aligned else predictor


def changed_across(
    inventory: Inventory, members: Sequence[Dim], judged: Sequence[Dim], sizes: Mapping[str, int]
) -> dict[str, int]:
    """The new sizes of the companions on the other axis, of those that change."""
    return {
        other.name: sizes[other.name]
        for other in companions(inventory, members, judged, crossing=True)
        if sizes.get(other.name, other.size) != other.size
    }


def holds(predictor: Predictor, judged: Sequence[Dim]) -> bool:
    """Whether the map has the curves that these dims are judged on."""
    return all(predictor.offered_sizes(dim, dim.size, dim.size) for dim in judged)


def meet(inventory: Inventory) -> bool:
    """Whether any two adjustable dims are N and K of one product."""
    return any(
        companions(inventory, [dim], [dim], crossing=True)
        for dim in inventory.dims
        if dim.adjustable
    )
