"""What the misaligned products of a whole model may cost, beside the padded and the dense one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gacprof.checkpoint.inventory import NewSizes
from gacprof.core.dtypes import ITEMSIZE
from gacprof.core.sizes import SizeSource
from gacprof.kernels import third_party
from gacprof.kernels.penalties import MIN_ROWS, PADDED_TO, estimate, parity_of
from gacprof.kernels.rules import Rules
from gacprof.workload.products import AS_STORED, Products


class Shape(NamedTuple):
    """A product of ``rows`` rows of x."""

    dtype: str
    rows: int
    n: int
    k: int


@dataclass(frozen=True)
class Slowdown:
    """A model's time in products, as a multiple of the time of the padded model, whose sides are
    all multiples of 8. The host, attention and all else are not in it."""

    tokens: tuple[int, ...]  # whose times are added up
    odd: float  # the part of products with an odd side
    even: float  # of products with an even side that is no multiple of 8, and no odd one
    unknown: float  # of misaligned products that nobody measured, counted as padded
    low: float  # the stored model, all estimates together at their lower end
    high: float  # at their upper end
    dense: float | None  # the model whose factor pairs are multiplied out; None: it has none
    padded_us: float | None  # by which parts are counted; None: by arithmetic, some are not known
    untimed: float  # the part of the arithmetic that nobody timed, which is left out


def slowdown(products: Products, source: SizeSource) -> Slowdown | None:
    """Estimate what misalignment costs a model in prefill, by the rules of a GPU.

    None where no product has an estimate: for aligned and quantised models, at few tokens, and on
    most GPUs.
    """
    prefill = {count: often for count, often in products.tokens.items() if count >= MIN_ROWS}
    if not prefill or not isinstance(source, Rules):
        return None
    inventory = products.inventory
    products = Products(inventory, prefill, products.tp, products.dtype)
    stored = shapes(products)
    estimates = {shape: estimate(source.name, *shape) for shape in stored}
    costs = {shape: cost for shape, cost in estimates.items() if cost is not None}
    if not costs:
        return None
    merged = {dim.name: None for dim in inventory.dims if inventory.is_mergeable(dim)}
    dense = shapes(products, merged) if merged else {}
    flops = {shape: padded_flops(shape) for shape in stored | dense}
    # Products that are equal in all three models, such as the head, need no time.
    needed = costs.keys() | (dense.keys() - stored.keys())
    times = padded_times(source.name, flops)
    is_timed = times.keys() >= needed
    weights = times if is_timed else flops
    parts = weighted(stored, weights)
    padded = sum(parts.values())
    parts = {shape: part / padded for shape, part in parts.items()}
    arithmetic = weighted(stored, flops)
    left_out = sum(part for shape, part in arithmetic.items() if shape not in weights)
    shares = {"aligned": 0.0, "odd": 0.0, "even": 0.0, "unknown": 0.0}
    for shape, part in parts.items():
        parity = parity_of(shape.n, shape.k)
        is_estimated = parity == "aligned" or shape in costs
        shares[parity if is_estimated else "unknown"] += part
    return Slowdown(
        tokens=tuple(prefill),
        odd=shares["odd"],
        even=shares["even"],
        unknown=shares["unknown"],
        low=1 + sum(parts[shape] * (cost.low - 1) for shape, cost in costs.items()),
        high=1 + sum(parts[shape] * (cost.high - 1) for shape, cost in costs.items()),
        dense=sum(weighted(dense, weights).values()) / padded or None,
        padded_us=padded if is_timed else None,
        untimed=left_out / sum(arithmetic.values()),
    )


def shapes(products: Products, sizes: NewSizes = AS_STORED) -> dict[Shape, float]:
    """Return how often a model runs each shape on one device; nothing if a shape is not known, or a
    product is not of plain 16-bit weights, which other kernels multiply."""
    counts: dict[Shape, float] = {}
    for product in products.on_device(products.inventory.modules, sizes):
        is_plain = product.storage.form == "none" and ITEMSIZE[product.dtype] == 2
        if not product.N or not product.K or not product.rows or not is_plain:
            return {}
        for rows, often in product.rows.items():
            shape = Shape(product.dtype, rows, product.N, product.K)
            counts[shape] = counts.get(shape, 0.0) + often
    return counts


def padded_flops(shape: Shape) -> float:
    """Return the arithmetic of a padded product."""
    n, k = (-(-side // PADDED_TO) * PADDED_TO for side in (shape.n, shape.k))
    return 2.0 * shape.rows * n * k


def padded_times(gpu: str, of_shapes: Iterable[Shape]) -> dict[Shape, float]:
    """Return the µs of the padded products that others timed."""
    times = {s: third_party.aligned_us(gpu, s.rows, s.n, s.k) for s in of_shapes}
    return {shape: time for shape, time in times.items() if time is not None}


def weighted(counts: Mapping[Shape, float], weights: Mapping[Shape, float]) -> dict[Shape, float]:
    """Return each shape's weight times how often it runs, without shapes that have no weight."""
    return {shape: weights[shape] * often for shape, often in counts.items() if shape in weights}
