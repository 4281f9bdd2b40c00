"""New sizes without a plan: zero padding to a multiple, everywhere or to one common width."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from gacprof.checkpoint.inventory import Inventory
from gacprof.core.errors import CheckpointError

Strategy = Literal["minimal", "optimal"]

MULTIPLES: Mapping[str, int] = MappingProxyType({"minimal": 8, "optimal": 16})
"""The zero-padding repair of "When Smaller Is Slower": to 8 (``minimal``) or 16 (``optimal``)."""


def round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def padded(inventory: Inventory, multiple: int) -> tuple[dict[str, int], tuple[str, ...]]:
    """Every dim that zeros may pad, rounded up, and notes on those left alone."""
    sizes, left = {}, []
    for dim in inventory.dims:
        target = round_up(dim.size, multiple)
        if target == dim.size:
            continue
        if dim.padding == "exact":
            sizes[dim.name] = target
        else:
            left.append(f"{dim.name} stays {dim.size}: {dim.why}")
    return sizes, tuple(left)


def uniform(inventory: Inventory, multiple: int) -> dict[str, int]:
    """All widths of one kind at their largest, rounded up to ``multiple``.

    Names every width, so that the config is rewritten even where one needs no padding. Raises
    :class:`CheckpointError` where the result would still not be a plain model.
    """
    factored = [m.name for m in inventory.modules if m.kind in ("factored", "grouped")]
    if factored:
        raise CheckpointError(
            f"{inventory.path} has factored layers ({factored[0]} and {len(factored) - 1} more): "
            "no plain config describes those; use --plan or --strategy"
        )
    if any(dim.kind == "hidden" for dim in inventory.dims):
        raise CheckpointError(
            f"{inventory.path} has a sliced hidden size and shortcut matrices, which no plain "
            "config describes; use --plan or --strategy"
        )
    attentions = {(a.heads, a.kv_heads, a.head_dim) for a in inventory.attentions}
    if len(attentions) > 1:
        raise CheckpointError(
            f"{inventory.path} has {len(attentions)} different attention shapes: heads cannot be "
            "padded, so no plain config describes it"
        )
    widths = [dim for dim in inventory.dims if dim.kind == "width"]
    if not widths:
        raise CheckpointError(f"{inventory.path} has no width that differs between layers")
    largest: dict[str, int] = {}
    for dim in widths:
        largest[dim.role] = max(largest.get(dim.role, 0), dim.size)
    return {dim.name: round_up(largest[dim.role], multiple) for dim in widths}
