"""What the misaligned products of a whole model may cost, beside the padded and the dense one."""

from __future__ import annotations

from collections.abc import Mapping
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

    rows: int
    n: int
    k: int
    dtype: str


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
        cost = estimate(source.name, shape.dtype, shape.rows, shape.n, shape.k)
        if cost is not None:
            costs[shape] = cost
    if not costs:
        return None
    merged = {dim.name: None for dim in inventory.dims if inventory.is_mergeable(dim)}
    dense = shapes(products, merged) if merged else {}
    weights, is_timed = times_or_flops(source.name, {*stored, *dense})
    padded = sum(weights[shape] * often for shape, often in stored.items())
    parts = {shape: weights[shape] * often / padded for shape, often in stored.items()}
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
        dense=sum(weights[shape] * often for shape, often in dense.items()) / padded or None,
        padded_us=padded if is_timed else None,
    )


def shapes(products: Products, sizes: NewSizes = AS_STORED) -> Mapping[Shape, float]:
    """Return how often a model runs each shape on one device; nothing where a shape is not known,
    or a product is not of plain 16-bit weights, whose kernels are others."""
    counts: dict[Shape, float] = {}
    for product in products.on_device(products.inventory.modules, sizes):
        is_plain = product.storage.form == "none" and ITEMSIZE[product.dtype] == 2
        if not product.N or not product.K or not product.rows or not is_plain:
            return {}
        for rows, often in product.rows.items():
            shape = Shape(rows, product.N, product.K, product.dtype)
            counts[shape] = counts.get(shape, 0.0) + often
    return counts


def times_or_flops(gpu: str, of_shapes: set[Shape]) -> tuple[Mapping[Shape, float], bool]:
    """Return the time of each padded product, and whether others measured all of them: else it is
    their arithmetic."""
    times: dict[Shape, float] = {}
    flops: dict[Shape, float] = {}
    for shape in of_shapes:
        n, k = (-(-side // PADDED_TO) * PADDED_TO for side in (shape.n, shape.k))
        flops[shape] = 2.0 * shape.rows * n * k
        time = third_party.aligned_us(gpu, shape.rows, n, k)
        if time is not None:
            times[shape] = time
    is_timed = len(times) == len(of_shapes)
    return (times if is_timed else flops), is_timed
