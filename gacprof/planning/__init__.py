"""Inventory + cliff map + budget → one chosen size per dim."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gacprof.planning.request import WINDOW, Constraints, PlanRequest
from gacprof.planning.schema import Plan

if TYPE_CHECKING:
    import torch

    from gacprof.checkpoint import Inventory
    from gacprof.cliffmap.source import SizeSource
    from gacprof.core import Progress
    from gacprof.diagnosing.predict import Tokens


def plan(
    checkpoint: str | Path | Inventory | torch.nn.Module,
    cliff_map: SizeSource | str | Path,
    *,
    objective: str = "energy",
    budget: float | None = None,
    budget_parameters: int | None = None,
    memory: int | None = None,
    tokens: Tokens | None = None,
    dtype: str | None = None,
    window: float = WINDOW,
    constraints: Constraints | None = None,
    scores: Mapping[str, float] | None = None,
    quality_floor: float | None = None,
    latency_limit_us: float | None = None,
    time_limit: float | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Choose a size for every adjustable dim of a checkpoint or of a model in memory.

    The keywords are the fields of :class:`PlanRequest`; ``progress(value, bound, what)`` is
    called while the search goes on. Raises :class:`CheckpointError`, :class:`MapError`,
    :class:`PlanError` or :class:`SolverError`.
    """
    from gacprof.checkpoint import Inventory, scan
    from gacprof.checkpoint.tensors import ModelReader
    from gacprof.diagnosing.sources import open_source
    from gacprof.planning.make import make_plan

    request = PlanRequest(
        objective, budget, budget_parameters, memory, tokens, dtype, window,
        constraints or Constraints(), scores, quality_floor, latency_limit_us, time_limit,
    )  # fmt: skip
    source, reader = open_source(cliff_map), None
    if isinstance(checkpoint, Inventory):
        inventory = checkpoint
    elif isinstance(checkpoint, str | Path):
        inventory = scan(checkpoint)
    else:
        reader = ModelReader(checkpoint)
        inventory = reader.inventory
    return make_plan(inventory, source, request, reader=reader, progress=progress)


__all__ = ["Constraints", "Plan", "PlanRequest", "plan"]
