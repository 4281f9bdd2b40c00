"""The verb ``plan``: a size for every dim, the most quality or the least padding within limits."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from pathlib import Path

import pandas as pd

from gacprof.checkpoint.inventory import Inventory, NewSizes
from gacprof.checkpoint.products import Tokens
from gacprof.checkpoint.scan import inventory_of
from gacprof.core.errors import PlanError
from gacprof.core.sizes import SizeSource, SizeVerdict
from gacprof.diagnosing.sizes import WINDOW, SizeTable
from gacprof.diagnosing.source import open_source, products_for
from gacprof.planning.candidates import SizeRules, Uniform, read_pins, size_groups
from gacprof.planning.options import DimClass, classes_of, options_of, thinned
from gacprof.planning.plan import Choice, LimitName, Limits, Plan, footprint, limits_of
from gacprof.planning.quality import LossCurves, Objective, ObjectiveName, Scores, loss_curves
from gacprof.planning.solver import MAX_WINDOW, Solution, solve


def plan(
    checkpoint: str | Path | Inventory,
    source: str | Path | SizeSource,
    *,
    objective: ObjectiveName = "quality",
    budget: float | None = None,
    memory: str | float | None = None,
    latency: str | float | None = None,
    tokens: Tokens | None = None,
    tp: int = 1,
    dtype: str | None = None,
    pin: Sequence[str] = (),
    window: float = WINDOW,
    multiple: int = 1,
    uniform: Uniform = "none",
    losses: str | Path | LossCurves | None = None,
    scores: Scores | None = None,
    out: str | Path | None = None,
) -> Plan:
    """Choose a size for every dim, within limits.

    Parameters
    ----------
    checkpoint
        A folder, a weights file or a hub id.
    source
        A map (file, run folder or shipped name) or a GPU's name (h100).
    objective
        ``quality``: the least loss. ``pad``: the least padding, no cut. ``gac``: the paper's Eq. 4.
    budget
        The most parameters, as a share of those of the dense weights: 0.85.
    memory
        The most bytes of all weights: 12GB.
    latency
        The most time of all products at the workload: 25ms.
    tokens
        Token counts of the workload, such as 1 1024; by default those of the map.
    tp
        Tensor-parallel ranks that share the products.
    dtype
        The type that products are computed in; by default the weights' own.
    pin
        Sizes that are settled: ``*.mlp:width=688``, ``*:rank=keep``.
    window
        The range that sizes are looked for in, as a fraction of a dim's size.
    multiple
        What an engine needs sizes to be a multiple of.
    uniform
        Dims of one module, role or kind take one size.
    losses
        A JSON file of losses by dim and size, as compress measures them; by default the share of
        energy by the factors' singular values.
    scores
        Importances by dim, for ``gac``.
    out
        A JSON file for the plan, which realign reads.

    Returns
    -------
    Plan
        The sizes, what they take, and a bound that certifies their value.

    Raises
    ------
    PlanError, CheckpointError, MapError, ConfigError
    """
    numbers = {"tp": tp, "multiple": multiple, "window": window, "budget": budget}
    for name, number in numbers.items():
        if number is not None and not 0 < number < inf:
            raise PlanError(f"{name} is {number}: give a positive number")
    inventory = inventory_of(checkpoint)
    size_source = open_source(source)
    products = products_for(inventory, size_source, tokens=tokens, tp=tp, dtype=dtype)
    dims = [dim for dim in inventory.dims if dim.adjustable]
    if not dims:
        raise PlanError(f"{inventory.path} has no dim whose size can change: nothing to plan")
    limits = limits_of(inventory, dims, budget, memory, latency)
    curves = loss_curves(inventory, dims, losses) if objective == "quality" else {}
    goal = Objective(objective, curves, scores or {})
    if objective == "gac":
        limits = limits or {"parameters": inventory.parameters}
        window = min(window, MAX_WINDOW)
    table = SizeTable(products, size_source)
    rules = SizeRules(read_pins(pin, dims), window, multiple, uniform)
    groups = thinned(inventory, size_groups(table, goal, rules))
    settled = {d.name: g.sizes[0] for g in groups if len(g.sizes) == 1 for d in g.dims}
    classes = classes_of(inventory, groups, settled)
    options = [options_of(c, table, goal, limits) for c in classes]
    rest = _rest(table, classes, settled, limits)
    solution = solve(
        [[option.value for option in row] for row in options],
        [
            ([[option.takes[name] for option in row] for row in options], most - rest[name])
            for name, most in limits.items()
        ],
    )
    sizes = dict(settled)
    for row, i in zip(options, solution.choice, strict=True):
        sizes |= row[i].sizes
    chosen = _plan_of(table, goal, sizes, limits, solution)
    if out is not None:
        chosen.save(out)
    return chosen


def _rest(
    table: SizeTable, classes: Sequence[DimClass], settled: NewSizes, limits: Limits
) -> dict[LimitName, float]:
    """The part of each limit that weights take which no class shares.

    Raises :class:`PlanError` for a limit on time where the source doesn't know that of a product.
    """
    inventory = table.products.inventory
    chosen = {info.stored_at for c in classes for info in c.tensors}
    tensors = [info for info in inventory.tensors.values() if info.stored_at not in chosen]
    weights = footprint(inventory, tensors, settled)
    rest: dict[LimitName, float] = {"parameters": weights.parameters, "bytes": weights.nbytes}
    if "latency_us" in limits:
        names = {module.name for c in classes for module in c.modules}
        modules = [module for module in inventory.modules if module.name not in names]
        latency_us = table.products.time_us(table.source, modules, settled)
        if (
            latency_us is None
            or table.products.time_us(table.source, inventory.modules, settled) is None
        ):
            raise PlanError(
                f"{table.source.name} doesn't know the latency of every product, which a limit on "
                "it needs: 'gacprof sweep --model CHECKPOINT' measures them, or leave it out"
            )
        rest["latency_us"] = latency_us.value
    return rest


def _plan_of(
    table: SizeTable, goal: Objective, sizes: NewSizes, limits: Limits, solution: Solution
) -> Plan:
    """The chosen sizes as a plan of the whole checkpoint, each with the verdict on it beside the
    others' new ones."""
    inventory, products = table.products.inventory, table.products
    tensors = list(inventory.tensors.values())
    before = footprint(inventory, tensors)
    after = footprint(inventory, tensors, sizes, inventory.modules)
    modules = [module for module in inventory.modules if sizes.keys() & set(module.dims)]
    us_before = products.time_us(table.source, modules)
    us_after = products.time_us(table.source, modules, sizes)
    choices = []
    for name, size in sizes.items():
        dim, verdict = inventory.dim(name), SizeVerdict(0, "safe")
        if size is not None:
            verdict = table.verdict(dim, size, sizes)
        loss = goal.loss(dim, size)
        choices.append(Choice(name, dim.kind, dim.size, size, verdict.verdict, loss))
    value = goal.value([inventory.dim(name) for name in sizes], sizes, after.parameters)
    return Plan(
        checkpoint=inventory.path,
        fingerprint=inventory.fingerprint,
        source=table.source.name,
        provenance=table.source.provenance,
        objective=goal.name,
        tokens=products.tokens,
        tp=products.tp,
        choices=tuple(choices),
        parameters=(before.parameters, after.parameters),
        nbytes=(before.nbytes, after.nbytes),
        latency_us=(us_before, us_after) if us_before and us_after else None,
        value=value,
        bound=value + (solution.bound - solution.value),
        limits=limits,
    )


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
    losses: str | Path | LossCurves | None = None,
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
        lost = sum(choice.loss for choice in chosen.choices)
        rows.append((budget, *chosen.parameters[1:], *chosen.nbytes[1:], us, lost))
    if refusals and not rows:
        raise refusals[-1]
    return pd.DataFrame(rows, columns=["budget", "parameters", "bytes", "us", "loss"])
