"""Inventory + cliff map + budget → one chosen size per dim."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gacprof.planning.schema import Plan

if TYPE_CHECKING:
    import torch

    from gacprof.checkpoint import Inventory
    from gacprof.cliffmap import CliffMap
    from gacprof.diagnosing.workload import Tokens
    from gacprof.planning.constraints import Constraints


def plan(
    checkpoint: str | Path | Inventory | torch.nn.Module,
    cliff_map: CliffMap | str | Path,
    *,
    objective: str = "energy",
    budget: float | None = None,
    budget_parameters: int | None = None,
    memory: int | None = None,
    tokens: Tokens | None = None,
    dtype: str | None = None,
    window: float = 0.25,
    constraints: Constraints | None = None,
    scores: Mapping[str, float] | None = None,
    quality_floor: float | None = None,
    latency_limit_us: float | None = None,
    time_limit: float | None = None,
    progress: Callable[[float, float], None] | None = None,
) -> Plan:
    """Choose a size for every adjustable dim of a checkpoint or of a model in memory. See
    :func:`make_plan`.

    Raises :class:`CheckpointError`, :class:`MapError`, :class:`PlanError` or
    :class:`SolverError`.
    """
    from gacprof.checkpoint import Inventory, scan
    from gacprof.checkpoint.tensors import ModelReader
    from gacprof.cliffmap import CliffMap
    from gacprof.planning.make import make_plan

    if not isinstance(cliff_map, CliffMap):
        cliff_map = CliffMap.load(cliff_map)
    reader = None
    if isinstance(checkpoint, Inventory):
        inventory = checkpoint
    elif isinstance(checkpoint, str | Path):
        inventory = scan(checkpoint)
    else:
        reader = ModelReader(checkpoint)
        inventory = reader.inventory
    return make_plan(
        inventory,
        cliff_map,
        aim=objective,
        budget=budget,
        budget_parameters=budget_parameters,
        memory=memory,
        tokens=tokens,
        dtype=dtype,
        window=window,
        constraints=constraints,
        scores=scores,
        quality_floor=quality_floor,
        latency_limit_us=latency_limit_us,
        time_limit=time_limit,
        progress=progress,
        reader=reader,
    )


__all__ = ["Plan", "plan"]
