"""Dims that meet in one product: which they are, and what they cost together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gacprof.checkpoint.inventory import Dim, Feed
from gacprof.diagnosing.predict import Predictor


class Axes:
    """Which dims add up on the same axis of a product, as PaLU's groups do."""

    def __init__(self, dims: Iterable[Dim]) -> None:
        self._by_feed: dict[tuple[str, Feed], list[Dim]] = {}
        for dim in dims:
            for feed in dict.fromkeys(dim.feeds):
                self._by_feed.setdefault((dim.kind, feed), []).append(dim)

    def others(self, members: Sequence[Dim], judged: Sequence[Dim]) -> list[Dim]:
        """Dims beside the ``judged`` on any axis that ``members`` feed."""
        names = {dim.name for dim in judged}
        found: dict[str, Dim] = {}
        for dim in members:
            for feed in dim.feeds:
                for other in self._by_feed[dim.kind, feed]:
                    if other.name not in names:
                        found[other.name] = other
        return list(found.values())

    def aligned(
        self, predictor: Predictor, members: Sequence[Dim], judged: Sequence[Dim]
    ) -> Predictor:
        """The ``judged`` beside the others at the next multiple of the period that the map found
        for them: beside odd ones only odd sizes would look safe, and all together none."""
        sizes = {}
        for other in self.others(members, judged):
            period = predictor.period(other)
            sizes[other.name] = -(-other.size // period) * period
        return predictor.beside(sizes) if sizes else predictor


def together(predictor: Predictor, members: Sequence[Dim], size: int | None) -> float | None:
    """Predicted time (µs) in all products that the members feed, all of them at ``size`` (None:
    as they are); each product once. None where the map lacks one."""
    if size is not None:
        predictor = predictor.beside({dim.name: size for dim in members})
    total = 0.0
    for weight in dict.fromkeys(feed.weight for dim in members for feed in dim.feeds):
        latency = predictor.product(weight).latency_us
        if latency is None:
            return None
        total += latency
    return total
