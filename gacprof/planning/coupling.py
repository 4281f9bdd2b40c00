"""What dims that meet in one product cost together."""

from __future__ import annotations

from collections.abc import Sequence

from gacprof.checkpoint.inventory import Dim
from gacprof.diagnosing.predict import Predictor


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
