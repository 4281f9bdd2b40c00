"""A suite made from a checkpoint: its own shapes, and what its dims could become.

For every adjustable dim the sizes around it are measured in every GEMM that it feeds, at the
layer's true shapes and the token counts that the user serves; everything else in the model
is measured once as it is, so that a diagnosis can add up the whole.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gacprof.checkpoint.inventory import Gemm
from gacprof.errors import SuiteError
from gacprof.points import MAX_DIM
from gacprof.sweeping.suite import Suite, parse_suite

if TYPE_CHECKING:
    from gacprof.checkpoint.inventory import Dim, Inventory

LADDER = ((8, 4), (128, 2))
"""(multiple, how many each way): the nearest multiples of 8, which is 16 bytes of a 16-bit
type (what TMA, cp.async and vector loads ask for), and of 128, a GEMM tile's edge. The dim
itself is always measured too."""

Key = tuple[str, tuple[tuple[str, int], ...], bool]  # swept axis, other dims, bias


def suite_for(
    inventory: Inventory,
    tokens: Sequence[int],
    *,
    dtype: str = "auto",
    window: float = 0.25,
    cache: str = "cold",
    timing: dict[str, Any] | None = None,
) -> Suite:
    """Every GEMM of the checkpoint at ``tokens`` rows, and candidates within ±``window``.

    Weights are measured ``cold`` by default: a model's weights do not stay in cache from one
    layer's turn to the next. Raises :class:`SuiteError` for token counts that are no counts.
    """
    if not tokens or any(count <= 0 for count in tokens):
        raise SuiteError(f"token counts must be positive, not {list(tokens)}")
    swept: dict[Key, set[int]] = defaultdict(set)
    for m in tokens:
        for dim in inventory.dims:
            for key, sizes in _around(inventory, dim, m, window):
                swept[key] |= sizes
        for module in inventory.modules:
            for gemm in module.gemms:
                swept[_key("N", m, gemm)].add(gemm.N)
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
            "flags": {"bias": bias, "cache": cache},
        }
        for (axis, others, bias), sizes in sorted(swept.items())
    ]
    tables += _attention(inventory, tokens, dtype)
    data = {
        "name": "for-checkpoint",
        "description": f"{inventory.layout} checkpoint {inventory.fingerprint}",
        "timing": timing or {},
        "sweep": tables,
    }
    return parse_suite(data, "the suite made for the checkpoint")


def sizes_near(size: int, window: float) -> set[int]:
    """``size`` and the nearest candidates on either side within ±``window`` (a fraction).

    The nearest multiple of 8 each way is there whatever the window.
    """
    sizes = {size}
    for multiple, count in LADDER:
        first = size // multiple * multiple
        below = [first - i * multiple for i in range(count + 1)]
        above = [first + (i + 1) * multiple for i in range(count)]
        sizes |= {s for s in below + above if s > 0 and abs(s - size) <= window * size}
    finest = LADDER[0][0]
    down = (size - 1) // finest * finest
    return sizes | {(size // finest + 1) * finest} | ({down} if down else set())


def _around(
    inventory: Inventory, dim: Dim, m: int, window: float
) -> Iterable[tuple[Key, set[int]]]:
    """For each GEMM that the dim feeds: the axis and the sizes that the GEMM would have.

    None beyond :attr:`Dim.most` can be chosen, but the next two above the present one are
    measured all the same: whether a dim wastes time shows in larger ones that are faster.
    """
    finest = LADDER[0][0]
    above = {(dim.size // finest + 1) * finest, (dim.size // finest + 2) * finest}
    most = max(dim.most or MAX_DIM, dim.size)
    sizes = {s for s in sizes_near(dim.size, window) if s <= most} | above
    for feed in dict.fromkeys(dim.feeds):
        times = dim.feeds.count(feed)
        gemms = [inventory.gemm(feed.weight)]
        if dim.size % finest:
            gemms.append(_beside_aligned(inventory, feed.weight, dim))
        for gemm in gemms:
            shared = getattr(gemm, feed.axis) - times * dim.size  # what other dims add to it
            yield _key(feed.axis, m, gemm), {shared + times * s for s in sizes}


def _beside_aligned(inventory: Inventory, weight: str, dim: Dim) -> Gemm:
    """The product with every other dim that feeds it raised to a multiple of the finest step:
    beside odd ones, an odd ``dim`` does not show what it costs."""
    gemm, finest = inventory.gemm(weight), LADDER[0][0]
    grown = {"N": gemm.N, "K": gemm.K}
    for other in inventory.fed_by(weight):
        for feed in other.feeds:
            if feed.weight == weight and other.name != dim.name and other.padding == "exact":
                grown[feed.axis] += -other.size % finest
    return replace(gemm, N=grown["N"], K=grown["K"])


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
