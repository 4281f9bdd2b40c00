"""A suite made before compression: the factor pairs that dense layers would be cut into.

``y = x · Wᵀ`` with W of (out, in) becomes ``(x · Vᵀ) · Uᵀ``: the rank is N of the first product,
beside K = in, and K of the second, beside N = out. So each input width gives one curve over N and
each output width one over K, and a few curves serve all layers of a model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from gacprof.core.dtypes import AUTO
from gacprof.core.errors import SuiteError
from gacprof.core.points import MAX_DIM
from gacprof.sweeping.for_checkpoint import own_dtype, reuse_mib
from gacprof.sweeping.suite import Suite, parse_suite

if TYPE_CHECKING:
    from gacprof.checkpoint.inventory import Inventory

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
    cache: str = "cold",
    timing: dict[str, Any] | None = None,
) -> Suite:
    """Both products of every shape (out, in) over the ranks from the first to the last, at
    ``tokens`` rows.

    A shape counts as often as it is there. Raises :class:`SuiteError` for a range or for token
    counts that are none.
    """
    first, last = ranks
    if not 0 < first <= last <= MAX_DIM - BEYOND:
        raise SuiteError(f"the ranks are {first}:{last}: give the first and the last, as 64:256")
    if not tokens or any(count <= 0 for count in tokens):
        raise SuiteError(f"token counts must be positive, not {list(tokens)}")
    count: Counter[tuple[str, int]] = Counter()
    for out_features, in_features in shapes:
        count["N", in_features] += 1
        count["K", out_features] += 1
    tables = [
        {
            "operator": "linear",
            "axis": axis,
            "values": [{"from": first, "to": last + BEYOND}],
            "dims": {"M": m, "K" if axis == "N" else "N": other},
            "dtype": dtype,
            "flags": {"bias": False, "cache": cache},
            "strategy": "adaptive",
            "weight": float(times),
        }
        for (axis, other), times in sorted(count.items())
        for m in sorted(set(tokens))
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
