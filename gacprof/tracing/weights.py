"""The weights of a checkpoint that a recorded product may have multiplied, by its N and K."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gacprof.checkpoint.inventory import Dim, Feed, Inventory
from gacprof.tracing.recording import RecordedProduct
from gacprof.tracing.runs import Run
from gacprof.workload.products import Axis, Product, Products
from gacprof.workload.roles import ROLES

FUSED = frozenset(role.fused for role in ROLES.values() if role.fused)  # in some engine
AXES: Sequence[Axis] = ("N", "K")


@dataclass(frozen=True)
class CheckpointProducts:
    """The products of a checkpoint on one GPU by (N, K), alone and as engines fuse them."""

    path: str = ""
    dims: Sequence[Dim] = ()
    head_dims: frozenset[int] = frozenset()
    vocabularies: frozenset[int] = frozenset()
    by_lengths: Mapping[tuple[int | None, int | None], Sequence[Product]] = field(
        default_factory=dict
    )

    def of(self, product: RecordedProduct | None) -> Sequence[Product]:
        """Return those of a product's lengths; stacked matrices are weights of experts alone."""
        if product is None:
            return ()
        products = self.by_lengths.get((product.N, product.K), ())
        return [p for p in products if p.role.kind == "expert" or not product.is_batched]

    def dims_of(self, weights: Iterable[str], lengths: Iterable[str]) -> tuple[str, ...]:
        """Return the names of the dims that feed these lengths (N, K) of weights."""
        axes = [axis for axis in AXES if axis in lengths]
        feeds = set(itertools.starmap(Feed, itertools.product(weights, axes)))
        return tuple(dim.name for dim in self.dims if not feeds.isdisjoint(dim.feeds))


def checkpoint_products(inventory: Inventory) -> CheckpointProducts:
    """Return what one GPU multiplies of a checkpoint."""
    by_lengths: dict[tuple[int | None, int | None], list[Product]] = {}
    vocabularies = set()
    head_dims = frozenset(attention.head_dim for attention in inventory.attentions)
    model = Products(inventory, {1: 1.0})
    for fused in (frozenset[str](), FUSED):
        model.fused = fused
        for product in model.on_device(inventory.modules):
            same = by_lengths.setdefault((product.N, product.K), [])
            if product not in same:
                same.append(product)
            if product.role.kind == "vocab" and product.N:
                vocabularies.add(product.N)
    return CheckpointProducts(
        inventory.path, inventory.dims, head_dims, frozenset(vocabularies), by_lengths
    )


def weight_runs(runs: Sequence[Run], weights: CheckpointProducts) -> list[Run]:
    """Return the products of a matrix and a weight: in a training trace those of the forward pass,
    for gradients (nn, nt) may have the lengths of another weight. Stacked matrices are weights
    where the checkpoint has experts of these lengths."""
    flat = [run for run in runs if run.product and not run.product.is_batched]
    stacked = [run for run in runs if run.product and run.product.is_batched]
    is_training = any(run.kernel.layout == "nt" for run in flat)
    forward = [run for run in flat if not is_training or run.kernel.layout not in ("nn", "nt")]
    return forward + [run for run in stacked if weights.of(run.product)]
