"""The verb ``pareto``: plans over several budgets side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.products import Tokens
from gacprof.checkpoint.scan import inventory_of
from gacprof.core.sizes import SizeSource
from gacprof.diagnose.source import open_source
from gacprof.plan.planner import plan
from gacprof.plan.quality import LossCurves, loss_curves

BUDGETS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


def pareto(
    checkpoint: str | Path | Inventory,
    source: str | Path | SizeSource,
    *,
    budgets: Sequence[float] = BUDGETS,
    tokens: Tokens | None = None,
    tp: int = 1,
    multiple: int = 1,
    window: float = 1.0,
    losses: str | Path | LossCurves | None = None,
) -> pd.DataFrame:
    """Set plans of the most quality over several budgets side by side.

    Parameters
    ----------
    checkpoint
        A folder, a weights file or a hub id.
    source
        A map (file, run folder or shipped name) or a GPU's name (h100).
    budgets
        Shares of the parameters of the dense weights; those that no plan meets have no row.
    tokens
        Token counts of the workload; by default those of the map.
    tp
        Tensor-parallel ranks that share the products.
    multiple
        What an engine needs sizes to be a multiple of.
    window
        The range that sizes are looked for in, as a fraction of a dim's size.
    losses
        A JSON file of losses by dim and size; by default the share of energy.

    Returns
    -------
    DataFrame
        By budget: parameters, bytes, µs of the products (NaN where not known), loss, its bound.

    Raises
    ------
    PlanError, CheckpointError, MapError
    """
    inventory, size_source = inventory_of(checkpoint), open_source(source)
    curves = loss_curves(inventory, inventory.dims, losses)
    rows: list[dict[str, Any]] = []
    for budget in budgets:
        chosen = plan(
            inventory,
            size_source,
            budget=budget,
            tokens=tokens,
            tp=tp,
            multiple=multiple,
            window=window,
            losses=curves,
        )
        row = {"budget": budget, "parameters": chosen.parameters[1], "bytes": chosen.nbytes[1]}
        latency_us = chosen.latency_us[1].value if chosen.latency_us else float("nan")
        rows.append(row | {"us": latency_us, "loss": -chosen.value, "least_loss": -chosen.bound})
    return pd.DataFrame(rows)
