"""Dims of one product hide each other's cliffs: each is judged beside the others' sizes.

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


def aligned_across(inventory: Inventory, held: Mapping[str, int]) -> Sizes:
    """What dims are judged beside before any size is chosen: every dim that can be padded at its
    next multiple of 64 for those across a product, except where it is ``held`` at a size. Two odd
    dims that are good as they are beside each other may both gain by being aligned together."""
    most = max(BESIDE)
    free = [dim for dim in inventory.dims if dim.padding == "exact"]
    return Sizes({}, {d.name: _rounded_up(d.size, most) for d in free} | dict(held))


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


def any_crossing(inventory: Inventory) -> bool:
    """Whether any two adjustable dims are N and K of one product."""
    free = [dim for dim in inventory.dims if dim.adjustable]
    return any(companions(inventory, [dim], [dim], crossing=True) for dim in free)


def changed_across(
    inventory: Inventory, members: Sequence[Dim], judged: Sequence[Dim], sizes: Mapping[str, int]
) -> dict[str, int]:
    """The new sizes of the companions on the other axis, of those that change."""
    return {
        other.name: sizes[other.name]
        for other in companions(inventory, members, judged, crossing=True)
        if sizes.get(other.name, other.size) != other.size
    }


def beside(
    predictor: Predictor,
    members: Sequence[Dim],
    judged: Sequence[Dim],
    sizes: Sizes | None = None,
) -> Predictor:
    """The predictor with the companions of the ``judged`` at ``sizes``.

    One on the same axis that has none is at the next multiple of the period that the map found
    for it, or of 8: beside odd ones only odd sizes would look safe, and all together none. Where
    the map does not hold the products beside the new sizes on the other axis, those take the
    next multiples of 64 or 8 that it holds, else they stay as they are.
    """
    sizes, inventory = sizes or Sizes(), predictor.inventory
    aligned = {}
    for other in companions(inventory, members, judged, crossing=False):
        period = predictor.period(other)
        default = _rounded_up(other.size, period if period > 1 else BESIDE[0])
        aligned[other.name] = sizes.along.get(other.name, default)
    changed = changed_across(inventory, members, judged, sizes.across)
    if changed:
        now = {name: inventory.dim(name).size for name in changed}
        rounded = [{n: _rounded_up(d, m) for n, d in now.items()} for m in sorted(BESIDE)[::-1]]
        for across in (changed, *rounded):
            near = predictor.beside(aligned | across)
            if holds(near, judged):
                return near
    moved = {name: size for name, size in aligned.items() if size != inventory.dim(name).size}
    return predictor.beside(moved) if moved else predictor


def holds(predictor: Predictor, judged: Sequence[Dim]) -> bool:
    """Whether the map has the curves that these dims are judged on."""
    return all(predictor.measured_sizes(dim, dim.size, dim.size) for dim in judged)


def _rounded_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
