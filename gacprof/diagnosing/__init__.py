"""Inventory × cliff map → per-weight cost, penalty, and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gacprof.checkpoint import Inventory, inventory_for
from gacprof.cliffmap import CliffMap
from gacprof.diagnosing.diagnosis import Diagnosis, DimFinding, WeightFinding, diagnose_inventory
from gacprof.diagnosing.workload import Tokens

if TYPE_CHECKING:
    import torch


def diagnose(
    checkpoint: str | Path | Inventory | torch.nn.Module,
    cliff_map: CliffMap | str | Path,
    *,
    tokens: Tokens | None = None,
    dtype: str | None = None,
) -> Diagnosis:
    """Judge a checkpoint's dims by a map. Reads headers only; imports no torch.

    ``checkpoint`` is a path, a hub id, an inventory, or a model in memory.
    ``tokens`` are counts, or maps counts to weights (default: one decode step, one prefill of
    1024).
    Raises :class:`CheckpointError`, :class:`MapError` or :class:`PlanError`.
    """
    if not isinstance(cliff_map, CliffMap):
        cliff_map = CliffMap.load(cliff_map)
    return diagnose_inventory(inventory_for(checkpoint), cliff_map, tokens=tokens, dtype=dtype)


__all__ = ["Diagnosis", "DimFinding", "WeightFinding", "diagnose", "diagnose_inventory"]
