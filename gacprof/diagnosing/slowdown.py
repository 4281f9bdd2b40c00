"""What the misaligned products of a whole model may cost, beside the padded and the dense one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gacprof.checkpoint.inventory import NewSizes
from gacprof.core.sizes import SizeSource
from gacprof.kernels import third_party
from gacprof.kernels.penalties import MIN_ROWS, PADDED_TO, estimate, parity_of
from gacprof.kernels.rules import Rules
from gacprof.workload.products import AS_STORED, Products

Shape = tuple[int, int, int, str]
"""Rows, N, K and dtype of a product."""


@dataclass(frozen=True)
class Slowdown:
    """How long a model's products take, in parts of those of the padded model: that has all sides
    padded to multiples of 8. The host, attention and all else are not in it."""

    tokens: tuple[int, ...]  # whose times are added up
    odd: float  # the part of products with an odd side
    even: float  # of those with an even one that is no multiple of 8
    unknown: float  # of misaligned ones that nothing is known of; they are taken for padded
    low: float  # the stored model, all estimates together at their lower end
    high: float  # at their upper end
    dense: float | None  # the model whose factor pairs are multiplied out; None: it has none
    padded_us: float | None  # by which parts are counted; None: by arithmetic, some are not known


def slowdown(products: Products, source: SizeSource) -> Slowdown | None:
    """Estimate what misalignment costs a model in prefill, by the rules of a GPU.

    None where no product has an estimate: of aligned and of quantised models, at few tokens, and on
    all GPUs but few.
    """
    prefill = {count: often for count, often in products.tokens.items() if count >= MIN_ROWS}
    if not prefill or not isinstance(source, Rules):
        return None
    inventory = products.inventory
    products = Products(inventory, prefill, products.tp, products.dtype)
    stored = shapes(products)
    costs = {}
    for shape in stored:
        rows, n, k, dtype = shape
        cost = estimate(source.name, dtype, rows, n, k)
        if cost is not None:
            costs[shape] = cost
    if not costs:
        return None
    merged = {dim.name: None for dim in inventory.dims if inventory.is_mergeable(dim)}
    dense_shapes = shapes(products, merged)
    weights, is_timed = times_or_flops(source.name, {*stored, *dense_shapes})
    padded = sum(weights[shape] * often for shape, often in stored.items())
    parts = dict.fromkeys(("aligned", "odd", "even", "unknown"), 0.0)
    low = high = 1.0
    for shape, often in stored.items():
        _, n, k, _ = shape
        part = weights[shape] * often / padded
        kind = parity_of(n, k)
        if shape in costs:
            low += part * (costs[shape].low - 1)
            high += part * (costs[shape].high - 1)
        parts[kind if kind == "aligned" or shape in costs else "unknown"] += part
    dense = None
    if merged:
        dense = sum(weights[shape] * often for shape, often in dense_shapes.items()) / padded
    padded_us = padded if is_timed else None
    odd, even, unknown = parts["odd"], parts["even"], parts["unknown"]
    return Slowdown(tuple(prefill), odd, even, unknown, low, high, dense, padded_us)


def shapes(products: Products, sizes: NewSizes = AS_STORED) -> Mapping[Shape, float]:
    """Return how often a model runs each shape on one device; nothing where a weight is quantised,
    whose kernels are others, or a shape is not known."""
    counts: dict[Shape, float] = {}
    for product in products.on_device(products.inventory.modules, sizes):
        if not product.N or not product.K or not product.rows or product.storage.form != "none":
            return {}
        for rows, often in product.rows.items():
            shape = rows, product.N, product.K, product.dtype
            counts[shape] = counts.get(shape, 0.0) + often
    return counts


def times_or_flops(gpu: str, of_shapes: set[Shape]) -> tuple[Mapping[Shape, float], bool]:
    """Return the time of each padded product, and whether others measured all of them: else it is
    their arithmetic."""
    times: dict[Shape, float] = {}
    flops: dict[Shape, float] = {}
    for shape in of_shapes:
        rows, n, k, _ = shape
        flops[shape] = 2.0 * rows * -(-n // PADDED_TO) * PADDED_TO * -(-k // PADDED_TO) * PADDED_TO
        time = third_party.aligned_us(gpu, rows, n, k)
        if time is not None:
            times[shape] = time
    is_timed = len(times) == len(of_shapes)
    return (times if is_timed else flops), is_timed
