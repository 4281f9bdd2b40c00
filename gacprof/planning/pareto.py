"""The verb ``pareto``: compare plans at several budgets."""

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
    """Compare plans at several model sizes.

    Parameters
    ----------
    checkpoint
        A model's folder, a weights file, or a model on the hub.
    source
        Where the answers come from: your own measurement (a map or a run folder), a shipped map, or
        a GPU's name such as h100.
    budgets
        The model sizes to compare, as shares of the parameters that the weights would have
        uncompressed.
    tokens
        Numbers of tokens in a call, such as 1 1024. By default those that the source knows.
    multiple
        The number that new sizes have to be multiples of, for your engine.
    losses
        A JSON file that says what each size loses, as compress measures it. By default losses are
        estimated from the singular values of the factors.

    Returns
    -------
    DataFrame
        By budget: parameters, bytes, µs of the products (None where not known), loss. Those that
        no plan meets have no row.

    Raises
    ------
    PlanError, CheckpointError, MapError

    Examples
    --------
    >>> model = "tests/fixtures/checkpoints/asvd_mha_r1"
    >>> # no safe sizes take as little as 0.5: it has no row
    >>> gacprof.pareto(model, "h100", budgets=[0.5, 0.75])[["budget", "parameters"]]
       budget  parameters
    0    0.75     2748672
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
