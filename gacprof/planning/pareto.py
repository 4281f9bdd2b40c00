"""The verb ``pareto``: plans over several budgets side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.scan import inventory_of
from gacprof.core.errors import PlanError
from gacprof.core.sizes import SizeSource
from gacprof.diagnosing.source import open_source
from gacprof.planning.planner import plan
from gacprof.planning.quality import Losses, loss_curves
from gacprof.workload.deployment import Tokens

BUDGETS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
PARETO_WINDOW = 1.0
"""Sizes are looked for from 1 to twice a dim's own: a budget may ask for half of it."""


def pareto(
    checkpoint: str | Path | Inventory,
    source: str | Path | SizeSource,
    *,
    budgets: Sequence[float] = BUDGETS,
    tokens: Tokens | None = None,
    multiple: int = 1,
    losses: str | Path | Losses | None = None,
) -> pd.DataFrame:
    """Set plans over several budgets side by side.

    Parameters
    ----------
    checkpoint
        A folder, a weights file or a hub id.
    source
        A map (file, run folder or shipped name) or a GPU's name (h100).
    budgets
        Shares of the parameters of the dense weights.
    tokens
        Token counts of the workload; by default those of the map.
    multiple
        What an engine needs sizes to be a multiple of.
    losses
        A JSON file of losses by dim and size; by default the share of energy.

    Returns
    -------
    DataFrame
        By budget: parameters, bytes, µs of the products (None where not known), loss. Those that
        no plan meets have no row.

    Raises
    ------
    PlanError, CheckpointError, MapError
    """
    inventory, sizes = inventory_of(checkpoint), open_source(source)
    curves = loss_curves(inventory, inventory.dims, losses)
    rows = []
    refusals = []
    for budget in budgets:
        options = {"budget": budget, "tokens": tokens, "multiple": multiple, "losses": curves}
        try:
            chosen = plan(inventory, sizes, window=PARETO_WINDOW, **options)  # type: ignore[arg-type]
        except PlanError as error:
            refusals.append(error)
            continue
        us = chosen.latency_us and chosen.latency_us[1].value
        lost = sum(choice.loss or 0.0 for choice in chosen.choices)
        rows.append((budget, *chosen.parameters[1:], *chosen.nbytes[1:], us, lost))
    if refusals and not rows:
        raise refusals[-1]
    return pd.DataFrame(rows, columns=["budget", "parameters", "bytes", "us", "loss"])
