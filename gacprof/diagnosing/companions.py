"""Dims of one product hide each other's cliffs: each is judged beside the others' sizes.

A rank of 131 and a width of 683 are K and N of one product. While both are odd, the product is slow
at every size that either could take alone, and each looks as good as it can be. What a dim costs
once the others are aligned shows only beside their new sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gacprof.checkpoint.inventory import BESIDE, Dim, Inventory
from gacprof.cliffmap.judge import ALIGNMENT
from gacprof.diagnosing.predict import Predictor

MOST = max(BESIDE)
"""Beside its multiples no smaller period of a power of two is hidden."""


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
    free = [dim for dim in inventory.dims if dim.padding == "exact"]
    return Sizes({}, {d.name: _rounded_up(d.size, MOST) for d in free} | dict(held))


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


def sharing_an_axis(inventory: Inventory) -> list[list[Dim]]:
    """Dims that add up on one axis of a product, as PaLU's groups of one weight do."""
    found: dict[str, list[Dim]] = {}
    for dim in inventory.dims:
        alone = all(len(inventory.fed_by(feed.weight)) < 2 for feed in dim.feeds)
        others = [] if alone else companions(inventory, [dim], [dim], crossing=False)
        if others and dim.name not in found:
            group = [dim, *others]
            found |= {other.name: group for other in group}
    return list({id(group): group for group in found.values()}.values())


def time_together(
    predictor: Predictor, group: Sequence[Dim], sizes: Mapping[str, int]
) -> float | None:
    """µs of all products that these dims feed, each once, with some of them at other sizes. None
    where the map lacks one."""
    near = _at(predictor, sizes)
    total = 0.0
    for weight in dict.fromkeys(feed.weight for dim in group for feed in dim.feeds):
        latency = near.product(weight).latency_us
        if latency is None:
            return None
        total += latency
    return total


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

    Ones on the same axis that have no size there are at the next multiple of the period that the
    map found for them, or of 32: beside odd ones only odd sizes would look safe, and all together
    none. Where the map does not hold the products beside these sizes, companions on that axis take
    the next multiples of 64 or 8 that it holds.
    """
    sizes, inventory = sizes or Sizes(), predictor.inventory
    others = companions(inventory, members, judged, crossing=False)
    periods = {other.name: predictor.period(other) for other in others}
    along = {name: _next(inventory, name, p if p > 1 else ALIGNMENT) for name, p in periods.items()}
    along |= {name: size for name, size in sizes.along.items() if name in along}
    across = changed_across(inventory, members, judged, sizes.across)
    for crossing in [across, *_rounded(inventory, across), {}] if across else [{}]:
        for parallel in [along, *_rounded(inventory, along)] if along else [{}]:
            near = _at(predictor, parallel | crossing)
            if near is predictor or holds(near, judged):
                return near
    return _at(predictor, _rounded(inventory, along)[-1])  # nothing is known: the least change


def _at(predictor: Predictor, sizes: Mapping[str, int]) -> Predictor:
    inventory = predictor.inventory
    changed = {name: size for name, size in sizes.items() if size != inventory.dim(name).size}
    return predictor.beside(changed) if changed else predictor


def _rounded(inventory: Inventory, names: Iterable[str]) -> list[dict[str, int]]:
    """These dims at their next multiples of 64, and of 8."""
    return [{n: _next(inventory, n, m) for n in names} for m in sorted(BESIDE, reverse=True)]


def _next(inventory: Inventory, name: str, multiple: int) -> int:
    return _rounded_up(inventory.dim(name).size, multiple)


def holds(predictor: Predictor, judged: Sequence[Dim]) -> bool:
    """Whether the map has the curves that these dims are judged on."""
    return all(predictor.sizes(dim, dim.size, dim.size) for dim in judged)


def _rounded_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
