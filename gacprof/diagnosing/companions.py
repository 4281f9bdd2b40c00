"""Dims that meet in one product hide each other's cliffs: each is judged beside aligned others.

A rank of 131 and a width of 683 are K and N of one product. While both are odd, the product is
slow at every size that either could take alone, and each looks as good as it can be. A dim that is
aligned itself is judged as it is: what it costs beside odd ones is not hidden.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gacprof.checkpoint.inventory import ALIGNED_STEP, Dim, Inventory
from gacprof.diagnosing.predict import Predictor


def companions(
    inventory: Inventory, members: Sequence[Dim], judged: Sequence[Dim], *, crossing: bool = True
) -> list[Dim]:
    """Dims beside the ``judged`` in any product that ``members`` feed.

    Without ``crossing`` only those on the same axis, as PaLU's groups add up on N; with it also
    those on the other axis, as a width meets the ranks of its factors.
    """
    names = {dim.name for dim in judged}
    found: dict[str, Dim] = {}
    for dim in members:
        for feed in dict.fromkeys(dim.feeds):
            for other in inventory.fed_by(feed.weight):
                same = other.kind == dim.kind and feed in other.feeds
                if other.name not in names and (crossing or same):
                    found[other.name] = other
    return list(found.values())


def beside_aligned(
    predictor: Predictor,
    members: Sequence[Dim],
    judged: Sequence[Dim],
    held: Mapping[str, int] | None = None,
) -> Predictor:
    """The predictor with the companions of the ``judged`` at a multiple of :data:`ALIGNED_STEP`.

    ``held`` are sizes that companions have to take. Companions on the other axis stay as they
    are where all members are such multiples, and where the map does not hold the products.
    """
    odd = any(dim.size % ALIGNED_STEP for dim in members)
    for crossing in (True, False) if odd else (False,):
        others = companions(predictor.inventory, members, judged, crossing=crossing)
        sizes = dict(_aligned(others, held or {}))
        near = predictor.beside(sizes) if sizes else predictor
        if not crossing or all(near.dim(d, d.size).latency_us is not None for d in members):
            return near
    return predictor


def _aligned(dims: Iterable[Dim], held: Mapping[str, int]) -> Iterable[tuple[str, int]]:
    """The dims that would change, with the size they would have."""
    for dim in dims:
        size = -(-dim.size // ALIGNED_STEP) * ALIGNED_STEP if dim.padding == "exact" else dim.size
        size = held.get(dim.name, size)
        if size != dim.size:
            yield dim.name, size
