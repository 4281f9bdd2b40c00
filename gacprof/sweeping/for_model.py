"""Make suites from a checkpoint: around the sizes that it has, or over ranks that it could get.

The sizes around a dim are measured in every product that it feeds, beside the other dims as they
are and as they may become; everything else once as it is, so that the whole model can be added up.
"""

from collections.abc import Mapping, Sequence
from itertools import chain

from gacprof.checkpoint.inventory import ALIGNED, Dim, Inventory
from gacprof.core.errors import MeasurementError
from gacprof.core.points import Axis, Flag
from gacprof.core.sizes import Use
from gacprof.sweeping.suite import Suite, complete_axis, merged_axes
from gacprof.workload.deployment import DEFAULT_TOKENS
from gacprof.workload.products import PADDED_TO, Products, padded_neighbours, plain_dtype

# Powers of two that a device's vectors and tiles may repeat with, up to a GEMM tile's edge, and the
# number of multiples of each that are measured on either side of a size.
STEPS = {1: 1, 2: 1, 4: 2, 8: 4, 16: 4, 32: 3, 64: 2, 128: 2}
STEPS_OF_ALIGNED = {16: 2, 32: 2, 64: 2, 128: 2}  # odd neighbours are not worth their time
LARGE = 1024  # from here on steps of 16 are below 2 %: fine enough for any budget
SMALLEST_REACH = 16  # multiples of steps up to this are measured whatever the window
BEYOND = 32  # ranks measured above the last, which is judged by larger ones


def suite_for_model(
    inventory: Inventory,
    tokens: Sequence[int] | Mapping[int, float] | None = None,
    *,
    dtype: str | None = None,
    window: float = 0.25,
    tp: int = 1,
) -> Suite:
    """Return every product of a checkpoint, at its sizes and those that its dims could become."""
    counts = dict.fromkeys(tokens or DEFAULT_TOKENS, 1.0)
    products = Products(inventory, counts, tp, dtype)
    axes = []
    for dim in inventory.dims:
        uses = list(products.uses_of(dim))
        for multiple in PADDED_TO if dim.size % ALIGNED else ():  # beside padded coupled dims too
            uses += products.uses_of(dim, padded_neighbours(inventory, dim, multiple))
        for use in uses:
            axes += axes_of_use(use, sizes_around(dim, window, max(use.N.tp, use.K.tp)))
    ranks = chain.from_iterable(map(inventory.ranks_of, inventory.modules))
    merged = dict.fromkeys((rank.name for rank in ranks), None)
    for sizes in ({}, merged):  # as it is, and with its factors multiplied out
        for product in products.on_device(inventory.modules, sizes):
            if product.N and product.K:
                for m in product.rows:
                    shape = {"M": m, "N": product.N, "K": product.K}
                    axes.append(linear_axis("N", [product.N], shape, product.dtype, product.bias))
    axes += attention_axes(inventory, list(counts), dtype or plain_dtype(inventory))
    return Suite("for-model", merged_axes(axes))


def suite_for_ranks(
    inventory: Inventory,
    ranks: tuple[int, int],
    tokens: Sequence[int] | Mapping[int, float] | None = None,
    *,
    dtype: str | None = None,
) -> Suite:
    """Return the factor pairs that a dense checkpoint's linear layers would be cut into. ``ranks``
    are the first and last. Raises :class:`MeasurementError` for no ranks or no dense layer."""
    dense = [m for m in inventory.modules if m.kind == "dense" and m.gemms and m.role != "head"]
    if len(ranks) != 2 or not 0 < ranks[0] <= ranks[1] or not dense:
        raise MeasurementError(
            f"ranks {ranks} of {len(dense)} dense layers: give the first and the last rank, such "
            "as 64 128, of a checkpoint that has some"
        )
    sizes = list(range(ranks[0], ranks[1] + BEYOND + 1))
    axes = []
    computed = dtype or plain_dtype(inventory)
    for module in dense:
        shape = {"N": module.out_features, "K": module.in_features}
        for m in tokens or DEFAULT_TOKENS:
            # A rank is N of the first factor's product and K of the second's; M is the dense layer.
            for dim, swept in (("N", sizes), ("K", sizes), ("M", [m])):
                axes.append(linear_axis(dim, swept, {"M": m, **shape}, computed, False))
    return Suite("for-ranks", merged_axes(axes))


def sizes_around(dim: Dim, window: float, tp: int = 1) -> list[int]:
    """Return sizes that a dim could become, each shared by ``tp`` TP ranks."""
    local = -(-dim.size // tp)
    limit = dim.max_size if dim.dense_size else 2 * dim.size + SMALLEST_REACH
    sizes = {size * tp for size in sizes_near(local, window) if size * tp <= limit}
    # The next multiples whatever the limit: a size is safe only beside larger ones.
    for step in (16, 64):
        sizes |= {(local // step + 1) * step * tp, (local // step + 2) * step * tp}
    return sorted(sizes | {dim.size})


def sizes_near(size: int, window: float) -> set[int]:
    """Return ``size`` and near multiples of each step on either side, within a fraction."""
    steps = STEPS_OF_ALIGNED if size % 64 == 0 and size >= LARGE else STEPS
    sizes = {size}
    for step, count in steps.items():
        first = size // step * step
        reach = max(window * size, min(step, SMALLEST_REACH))
        multiples = range(max(step, first - count * step), first + (count + 2) * step, step)
        sizes |= {multiple for multiple in multiples if abs(multiple - size) <= reach}
    return sizes


def axes_of_use(use: Use, sizes: Sequence[int]) -> list[Axis]:
    """Return the axis that a use's product moves along as its dim takes these sizes, or none."""
    shapes = [shape for shape in map(use.at, sizes) if shape is not None]
    if not shapes or (use.N.times and use.K.times):
        return []
    dim, place = ("N", 0) if use.N.times else ("K", 1)
    shape = {"M": use.tokens, "N": shapes[0][0], "K": shapes[0][1]}
    lengths = [lengths[place] for lengths in shapes]
    return [linear_axis(dim, lengths, shape, use.dtype, use.gemm.bias)]


def linear_axis(
    dim: str, sizes: Sequence[int], shape: Mapping[str, int], dtype: str, bias: bool
) -> Axis:
    """Return an axis of a product with cold weights: other layers' come between two uses."""
    fixed = {name: size for name, size in shape.items() if name != dim}
    flags: dict[str, Flag] = {"bias": bias, "cache": "cold"}
    return complete_axis(Axis("linear", dim, tuple(sorted(set(sizes))), fixed, dtype, flags))


def attention_axes(inventory: Inventory, tokens: Sequence[int], dtype: str) -> list[Axis]:
    """Return prefill attention at the model's head_dim and the multiples of 8 just above it."""
    axes = []
    shapes = {(a.heads, a.kv_heads, a.head_dim) for a in inventory.attentions}
    for heads, kv_heads, head_dim in sorted(shapes):
        sizes = tuple(sorted({head_dim, *range(-(-head_dim // 8) * 8, head_dim + 33, 8)}))
        for m in tokens:
            if m > 1:
                fixed = {"heads": heads, "kv_heads": kv_heads, "q_len": m}
                axis = Axis("attention", "head_dim", sizes, fixed, dtype, {"causal": True})
                axes.append(complete_axis(axis))
    return axes
