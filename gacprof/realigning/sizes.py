"""New sizes by dim name: from a plan, its file, a mapping, or one of four words."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gacprof.checkpoint.inventory import Inventory, NewSizes
from gacprof.checkpoint.layouts.configs import width_keys
from gacprof.core.errors import CheckpointError, PlanError
from gacprof.planning.plan import Plan, load_plan

Sizes = Plan | Path | str | NewSizes
"""``pad8`` and ``pad16`` are the zero-padding repairs of "When Smaller Is Slower", ``uniform`` the
largest width of each kind for all layers, ``fuse`` merges all factors; any other text is the path
of a plan."""


def new_sizes(inventory: Inventory, sizes: Sizes) -> NewSizes:
    """Sizes by dim name, None where a rank is merged into a dense weight.

    Raises :class:`PlanError` for a plan of another checkpoint, :class:`CheckpointError` where
    ``uniform`` or ``fuse`` has nothing to say about this one.
    """
    if isinstance(sizes, Mapping):
        return sizes
    if sizes in ("pad8", "pad16"):
        return padded_sizes(inventory, int(str(sizes).removeprefix("pad")))
    if sizes == "uniform":
        return uniform_sizes(inventory)
    if sizes == "fuse":
        ranks = [dim.name for dim in inventory.dims if dim.kind == "rank"]
        if not ranks:
            raise CheckpointError(f"{inventory.path} has no factors to merge")
        return dict.fromkeys(ranks)
    plan = sizes if isinstance(sizes, Plan) else load_plan(Path(sizes))
    if inventory.container != "memory" and plan.fingerprint != inventory.fingerprint:
        raise PlanError(f"the plan is of {plan.checkpoint}, not of {inventory.path}: plan again")
    return plan.sizes


def padded_sizes(inventory: Inventory, multiple: int) -> NewSizes:
    """Every dim that zeros may pad at the next multiple.

    Widths that follow from one number of the config are padded together or not at all, so that a
    plain model stays one.
    """
    exact = [dim for dim in inventory.dims if dim.padding == "exact"]
    sizes = {dim.name: round_up(dim.size, multiple) for dim in exact}
    for key in width_keys(inventory.config, inventory.dims):
        width = key.value_at({})
        if width and key.value in (None, width):  # else layers differ: no number says their widths
            padded = key.padded(multiple)
            if not padded.keys() <= sizes.keys():
                padded = {dim.name: dim.size for dim in key.dims}
            sizes |= padded
    return sizes


def uniform_sizes(inventory: Inventory, multiple: int = 8) -> NewSizes:
    """All widths of one kind at their largest, rounded up: a plain config that any server loads.

    Every width is named, so that the config is written anew even where none needs padding.
    """
    attentions = {(a.heads, a.kv_heads, a.head_dim) for a in inventory.attentions}
    widths = [dim for dim in inventory.dims if dim.kind == "width"]
    if len(widths) < len(inventory.dims) or len(attentions) > 1 or not widths:
        raise CheckpointError(
            f"{inventory.path}: no plain config describes factors (merge them: fuse), sliced "
            "hidden sizes, different heads, or no MLP widths at all; export it, or give a plan"
        )
    largest: dict[str, int] = {}
    for dim in widths:
        largest[dim.role] = max(largest.get(dim.role, 0), dim.size)
    sizes = {dim.name: round_up(largest[dim.role], multiple) for dim in widths}
    for key in width_keys(inventory.config, widths):
        sizes |= key.padded(multiple)
    return sizes


def round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
