"""The weights of a checkpoint that a recorded product may have multiplied, by its N and K."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gacprof.checkpoint.inventory import Feed, Inventory
from gacprof.tracing.recording import RecordedProduct
from gacprof.workload.products import Axis, Product, Products

FUSED = frozenset({"qkv", "gate_up"})  # what engines multiply as one


@dataclass(frozen=True, eq=False)
class CheckpointProducts:
    """The products of a checkpoint on one GPU by (N, K), alone and as engines fuse them."""

    inventory: Inventory
    by_lengths: dict[tuple[int | None, int | None], list[Product]]

    def of(self, product: RecordedProduct) -> Sequence[Product]:
        """Return those of a product's lengths."""
        return self.by_lengths.get((product.N, product.K), ())

    def dims(self, product: RecordedProduct, axes: Iterable[Axis]) -> tuple[str, ...]:
        """Return the names of the dims that may be these axes of a product."""
        feeds = set()
        for candidate in self.of(product):
            for weight in candidate.weights:
                feeds |= {Feed(weight, axis) for axis in axes}
        names = [dim.name for dim in self.inventory.dims if not feeds.isdisjoint(dim.feeds)]
        return tuple(names)


def checkpoint_products(inventory: Inventory) -> CheckpointProducts:
    """Return what one GPU multiplies of a checkpoint."""
    by_lengths: dict[tuple[int | None, int | None], list[Product]] = {}
    model = Products(inventory, {1: 1.0})
    for fused in (model.fused, model.fused | FUSED):
        model.fused = fused
        for product in model.on_device(inventory.modules):
            same = by_lengths.setdefault((product.N, product.K), [])
            if product not in same:
                same.append(product)
    return CheckpointProducts(inventory, by_lengths)
