"""Suites made from a checkpoint: around the dims that it has, or over ranks that it could get.

:func:`suite_for` is of a compressed model. For every adjustable dim the sizes around it are
measured in every GEMM that it feeds, at the layer's true shapes and the token counts that the
user serves, and beside what dims on the other axis may become; everything else in the model is
measured once as it is, so that a diagnosis can add up the whole.

:func:`suite_for_ranks` is made before compression. ``y = x · Wᵀ`` with W of (out, in) becomes
``(x · Vᵀ) · Uᵀ``: the rank is N of the first product, beside K = in, and K of the second, beside
N = out. So each input width gives one curve over N and each output width one over K, and a few
curves serve all layers of a model.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gacprof import operators
from gacprof.checkpoint.inventory import ALIGNED, NEIGHBOUR_MULTIPLES, Gemm
from gacprof.checkpoint.products import LocalProducts
from gacprof.core.dtypes import AUTO, BY_NAME
from gacprof.core.errors import SuiteError
from gacprof.core.points import MAX_DIM
from gacprof.stats.judge import ALIGNMENT
from gacprof.sweeping.suite import Suite, parse_suite

if TYPE_CHECKING:
    from gacprof.checkpoint.inventory import Dim, Feed, Inventory

PERIODS = {1: 1, 2: 1, 4: 2, 8: 4, 16: 4, 32: 3, 64: 2, 128: 2}
"""What a device's tiles and vectors may repeat with, before it was asked: powers of two up to a
GEMM tile's edge. Of each so many multiples on either side are measured, and the map finds the
period itself."""
PERIODS_OF_ALIGNED = {16: 2, 32: 2, 64: 2, 128: 2}
"""Of a large dim that is a multiple of 64 already. Only larger sizes could show that it wastes
time, and only coarse ones are what a smaller budget would take: its odd neighbours are not worth
their time."""
TOGETHER = (8, 16, 32, 64)
"""Dims that add up on one axis are measured together, each at its next multiple of these."""
LARGE = 1024
"""From here on steps of 16 are below 2 %: fine enough for any budget."""
LEAST_REACH = 16
"""Multiples of periods up to this are measured whatever the window."""
FAR = 64
"""The largest period whose next multiples are measured whatever the window."""
MOST_REUSE_MIB = 512
"""Larger than the last-level caches of today's CPUs and GPUs (H100: 50 MB, EPYC: 384 MB)."""

Key = tuple[str, tuple[tuple[str, int], ...], bool]  # swept axis, other dims, bias


def suite_for(
    inventory: Inventory,
    tokens: Sequence[int],
    *,
    dtype: str = "auto",
    window: float = 0.25,
    multiples: Mapping[str, int] | None = None,
    tp: int = 1,
    timing: dict[str, Any] | None = None,
) -> Suite:
    """Every GEMM of the checkpoint at ``tokens`` rows, and candidates within ±``window``.

    ``multiples`` are by dim name what an engine wants sizes to be multiples of: the nearest are
    measured whatever the window. Products and sizes are those of one of ``tp`` ranks.
    ``dtype`` defaults to the checkpoint's own. A curve's weight is the number of products on it.
    Weights are measured ``cold``: a model's weights do not stay in cache from one
    layer's turn to the next. Raises :class:`SuiteError` for token counts that are no counts.
    """
    dtype = own_dtype(inventory) if dtype == AUTO else dtype
    _check_tokens(tokens)
    ranks = LocalProducts(inventory, tp)
    swept: dict[Key, set[int]] = defaultdict(set)
    products: dict[Key, int] = defaultdict(int)  # that the curve is of
    for m in tokens:
        for dim in inventory.dims:
            wanted = (multiples or {}).get(dim.name, 1)
            for key, sizes in _around(inventory, ranks, dim, m, window, wanted):
                swept[key] |= sizes
                products[key] += 1
        for module in inventory.modules:
            for gemm in module.gemms:
                if (local := ranks.local(gemm)) is not None:
                    here = replace(gemm, N=local[0], K=local[1])
                    swept[_key("N", m, here)].add(here.N)
            if len(module.gemms) > 1:  # what the factors would cost multiplied out
                bias = any(gemm.bias for gemm in module.gemms)
                dense = Gemm(module.name, module.out_features, module.in_features, bias)
                swept[_key("N", m, dense)].add(dense.N)
    tables = [
        {
            "operator": "linear",
            "axis": axis,
            "values": sorted(sizes),
            "dims": dict(others),
            "dtype": dtype,
            "flags": {"bias": bias, "cache": "cold"},
            "weight": float(max(1, products[axis, others, bias])),
        }
        for (axis, others, bias), sizes in sorted(swept.items())
    ]
    tables += _attention(inventory, tokens, dtype)
    data = {
        "name": "for-checkpoint",
        "description": f"{inventory.layout} checkpoint {inventory.fingerprint}",
        "timing": {"reuse_mib": reuse_mib(inventory)} | (timing or {}),
        "sweep": tables,
    }
    return parse_suite(data, "the suite made for the checkpoint")


def _check_tokens(tokens: Sequence[int]) -> None:
    if not tokens or any(count <= 0 for count in tokens):
        raise SuiteError(f"token counts must be positive, not {list(tokens)}")


def own_dtype(inventory: Inventory) -> str:
    """The dtype that most weights are stored in, where products of it can be measured."""
    stored = inventory.main_dtype
    return stored if stored in operators.get("linear").dtypes else AUTO


def reuse_mib(inventory: Inventory) -> int:
    """Between two uses of a weight a model reads all its others: that much memory (MiB), up to
    :data:`MOST_REUSE_MIB`, by which no cache holds anything any more."""
    stored = 0
    for module in inventory.modules:
        known = BY_NAME.get(module.dtype)
        itemsize = known.itemsize if known else 2
        stored += sum(gemm.N * gemm.K * itemsize for gemm in module.gemms)
    return int(min(MOST_REUSE_MIB, max(1, stored >> 20)))


def sizes_near(size: int, window: float, periods: Mapping[int, int] | None = None) -> set[int]:
    """``size`` and the nearest multiples of each period on either side, within ±``window`` (a
    fraction); the nearest multiple of each up to 16 whatever the window."""
    if periods is None:
        periods = PERIODS if size % FAR or size < LARGE else PERIODS_OF_ALIGNED
    sizes = {size}
    for period, count in periods.items():
        first = size // period * period
        near = [first + i * period for i in range(-count, count + 2)]
        reach = max(window * size, min(period, LEAST_REACH))
        sizes |= {s for s in near if s > 0 and abs(s - size) <= reach}
    return sizes


def _around(
    inventory: Inventory, ranks: LocalProducts, dim: Dim, m: int, window: float, multiple: int
) -> Iterable[tuple[Key, set[int]]]:
    """For each GEMM that the dim feeds: the axis and the sizes that the GEMM would have.

    None beyond :attr:`Dim.most` can be chosen, but the next two multiples of 16 and of 64 are
    measured all the same: whether a dim wastes time shows in larger ones that are faster, and the
    last one that can be chosen is not safe unless something larger was measured.
    """
    shards = {feed: ranks.shards(feed.weight)[feed.axis == "K"] for feed in dim.feeds}
    held = max(shards.values(), default=1)  # sizes are looked for as one rank holds them
    local = -(-dim.size // held)
    above = {(local // p + more) * p * held for p in (LEAST_REACH, FAR) for more in (1, 2)}
    most = max(dim.most or MAX_DIM, dim.size)
    near = {s * held for s in sizes_near(local, window)}
    sizes = {s for s in near if s <= most} | above | {dim.size}
    if multiple > 1:
        steps = (dim.size // multiple + more for more in (-1, 0, 1, 2))
        demanded = {step * multiple for step in steps if step > 0}
        sizes |= demanded  # and what tells whether such a size, far from others, is a good one
        sides = (-ALIGNMENT * held, ALIGNMENT * held)
        sizes |= {s + side for s in demanded for side in sides if s + side > 0}
    for feed in dict.fromkeys(dim.feeds):
        times = dim.feeds.count(feed)
        for gemm in _products_of(inventory, dim, feed):
            shared = getattr(gemm, feed.axis) - times * dim.size  # what other dims add to the axis
            for multiple in (1, *NEIGHBOUR_MULTIPLES):
                others = shared + _rounding(inventory, dim, feed, multiple)
                lengths = {others + times * s for s in sizes}
                yield from _local(ranks, feed, m, gemm, lengths)
            if others > shared:  # what all of them are together
                raised = [(_rounding(inventory, dim, feed, p), -dim.size % p) for p in TOGETHER]
                own = times * dim.size
                lengths = {shared + theirs + own + times * ours for theirs, ours in raised}
                yield from _local(ranks, feed, m, gemm, lengths)


def _local(
    ranks: LocalProducts, feed: Feed, m: int, gemm: Gemm, lengths: Iterable[int]
) -> Iterable[tuple[Key, set[int]]]:
    """The axis and these lengths of it as one rank holds them, those that the shards divide."""
    on_n, on_k = ranks.shards(gemm.weight)
    on_axis, on_other = (on_n, on_k) if feed.axis == "N" else (on_k, on_n)
    other = gemm.K if feed.axis == "N" else gemm.N
    if other % on_other == 0:
        here = replace(gemm, N=gemm.N // on_n, K=gemm.K // on_k)
        yield _key(feed.axis, m, here), {n // on_axis for n in lengths if n % on_axis == 0}


def _rounding(inventory: Inventory, dim: Dim, feed: Feed, multiple: int) -> int:
    """What the dims beside ``dim`` on its axis (PaLU's groups add up on N) would add to it, each
    raised to a multiple: beside odd ones nothing looks safe."""
    return sum(
        -other.size % multiple
        for other in inventory.fed_by(feed.weight)
        if other.name != dim.name and other.kind == dim.kind and other.adjustable
        for theirs in other.feeds
        if theirs == feed
    )


def _products_of(inventory: Inventory, dim: Dim, feed: Feed) -> list[Gemm]:
    """The product as it is, and with the dims on its other axis at what they may become."""
    gemm = inventory.gemm(feed.weight)
    found = [gemm]
    if dim.size % ALIGNED == 0:
        return found  # beside odd ones too it shows what it costs
    for multiple in NEIGHBOUR_MULTIPLES:
        grown = {"N": gemm.N, "K": gemm.K}
        for other in inventory.fed_by(feed.weight):
            for theirs in other.feeds:
                meets = theirs.weight == feed.weight and theirs.axis != feed.axis
                if meets and other.adjustable:
                    grown[theirs.axis] += -other.size % multiple
        found.append(replace(gemm, N=grown["N"], K=grown["K"]))
    return list(dict.fromkeys(found))


def _key(axis: str, m: int, gemm: Gemm) -> Key:
    dims = {"M": m, "N": gemm.N, "K": gemm.K}
    dims.pop(axis)
    return axis, tuple(sorted(dims.items())), gemm.bias


def _attention(inventory: Inventory, tokens: Sequence[int], dtype: str) -> list[dict[str, Any]]:
    """Prefill attention at the model's head_dim and the multiples of 8 just above it."""
    shapes = {(a.heads, a.kv_heads, a.head_dim) for a in inventory.attentions}
    return [
        {
            "operator": "attention",
            "axis": "head_dim",
            "values": sorted({head_dim, *range(-(-head_dim // 8) * 8, head_dim + 33, 8)}),
            "dims": {"heads": heads, "kv_heads": kv_heads, "q_len": m},
            "dtype": dtype,
            "flags": {"causal": True},
        }
        for heads, kv_heads, head_dim in sorted(shapes)
        for m in sorted(tokens)
        if m > 1
    ]


# --- before compression

BEYOND = 32
"""Ranks measured beyond the range's end: the last ones are judged by larger ones too."""

Shape = tuple[int, int]  # (out, in), as a weight is stored


def dense_shapes(inventory: Inventory) -> list[Shape]:
    """(out, in) of every dense linear layer that compressors cut into factors, repeated as often
    as the model has it. Embeddings and the head are left whole.

    Raises :class:`SuiteError` where there is none.
    """
    shapes = [
        (module.out_features, module.in_features)
        for module in inventory.modules
        if module.kind == "dense" and module.gemms and module.role not in ("embedding", "head")
    ]
    if not shapes:
        raise SuiteError(f"{inventory.path} has no dense linear layer to cut into factors")
    return shapes


def suite_for_ranks(
    shapes: Iterable[Shape],
    ranks: tuple[int, int],
    tokens: Sequence[int],
    *,
    dtype: str = AUTO,
    timing: dict[str, Any] | None = None,
) -> Suite:
    """Both products of every shape (out, in) over the ranks from the first to the last, and the
    product that they replace, at ``tokens`` rows.

    A shape counts as often as it is there. Raises :class:`SuiteError` for a range or for token
    counts that are none.
    """
    first, last = ranks
    if not 0 < first <= last <= MAX_DIM - BEYOND:
        raise SuiteError(f"the ranks are {first}:{last}: give the first and the last, as 64:256")
    _check_tokens(tokens)
    shapes = list(shapes)
    count: Counter[tuple[str, int]] = Counter()
    for out_features, in_features in shapes:
        count["N", in_features] += 1
        count["K", out_features] += 1
    common = {"operator": "linear", "dtype": dtype, "flags": {"bias": False, "cache": "cold"}}
    over_ranks = {"values": [{"from": first, "to": last + BEYOND}], "strategy": "adaptive"}
    over_tokens = {"axis": "M", "values": sorted(set(tokens))}
    tables: list[dict[str, Any]] = [
        common
        | over_ranks
        | {"axis": axis, "dims": {"M": m, "K" if axis == "N" else "N": other}}
        | {"weight": float(times)}
        for (axis, other), times in sorted(count.items())
        for m in sorted(set(tokens))
    ]
    tables += [
        common | over_tokens | {"dims": {"N": n, "K": k}, "weight": float(times)}
        for (n, k), times in sorted(Counter(shapes).items())
    ]
    data = {
        "name": "for-ranks",
        "description": f"factor pairs of {len(set(count))} sides, ranks {first} to {last}",
        "timing": timing or {},
        "sweep": tables,
    }
    return parse_suite(data, "the suite made for ranks")


def suite_for_ranks_of(
    inventory: Inventory, ranks: tuple[int, int], tokens: Sequence[int], *, dtype: str = AUTO
) -> Suite:
    """The same for all dense layers of a checkpoint, in its own dtype by default."""
    return suite_for_ranks(
        dense_shapes(inventory),
        ranks,
        tokens,
        dtype=own_dtype(inventory) if dtype == AUTO else dtype,
        timing={"reuse_mib": reuse_mib(inventory)},
    )
