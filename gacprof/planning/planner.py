"""The verb ``plan``: choose a size for every dim, for the most quality or the least padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from math import inf
from pathlib import Path
from typing import get_args

from gacprof.checkpoint.config import sizes_refusal
from gacprof.checkpoint.inventory import Inventory, NewSizes
from gacprof.checkpoint.layouts.configs import with_widths
from gacprof.checkpoint.scan import inventory_of
from gacprof.checkpoint.tensor_fit import factors_hint
from gacprof.core.errors import ConfigError, PlanError, require_one_of, require_within
from gacprof.core.sizes import SizeSource, advice
from gacprof.diagnosing.sizes import WINDOW, SizeTable
from gacprof.diagnosing.source import open_source, products_for
from gacprof.kernels.rules import Rules
from gacprof.lint.deployment import ConfigDeployment, deploy
from gacprof.lint.judge import overall
from gacprof.lint.multiples import ANY_SIZE, EngineMultiple, engine_multiples
from gacprof.lint.remedies import find_remedies
from gacprof.planning.candidates import SizeRules, Uniform, read_pins, size_groups
from gacprof.planning.options import DimClass, Problem, classes_of, flat, scenarios_of
from gacprof.planning.plan import UNITS, Choice, LimitName, Limits, Plan, footprint, limits_of
from gacprof.planning.quality import Losses, Objective, ObjectiveName, Scores, loss_curves
from gacprof.planning.solver import ROUNDING, solve_options
from gacprof.workload.deployment import Tokens

MAX_WINDOW = 0.1
"""How far from a dim's size Eq. 4 is followed: about an alignment step, as in the paper's example
(107.3 → 96, 104, 112, 128). Wider windows lost more energy than no plan at all."""
MAX_MULTIPLE = 65_536  # no engine requires more
# A window of 1 reaches to twice a dim's size, a budget of 2 to twice the dense parameters: a
# larger number means percent.
MAX_SEARCH, MAX_BUDGET = 1.0, 2.0


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
    ep: int = 1,
    engine: str | None = None,
    dtype: str | None = None,
    pin: Sequence[str] = (),
    window: float = WINDOW,
    multiple: int = 1,
    uniform: Uniform = "none",
    losses: str | Path | Losses | None = None,
    scores: Scores | None = None,
    out: str | Path | None = None,
) -> Plan:
    """Choose a better size for each rank and width of a model, within limits of size or time.

    Parameters
    ----------
    checkpoint
        A model's folder, a weights file, or a model on the hub.
    source
        Where the answers come from: your own measurement (a map or a run folder), a shipped map, or
        a GPU's name such as h100.
    objective
        What is best. ``quality``: lose the least accuracy. ``pad``: add the fewest zeros, cut
        nothing. ``gac``: the weighted sum of GAC (arXiv 2604.09595, Eq. 4).
    budget
        The most parameters, as a share of those that the weights would have uncompressed: 0.85.
    memory
        The most bytes of all weights: 12GB.
    latency
        The most time of all products at these tokens: 25ms.
    tokens
        Numbers of tokens in a call, such as 1 1024. By default those that the source knows.
    tp
        Tensor-parallel ranks: how many GPUs share each matrix.
    ep
        Expert-parallel ranks: how many GPUs share out whole experts.
    engine
        The engine that is to serve the model, and needs widths to be multiples: vllm, sglang …;
        vllm==0.33.0 names its version too.
    dtype
        The type that products are computed in. By default the weights' own.
    pin
        Sizes that you have settled: ``*.mlp:width=688``, ``*:rank=keep``.
    window
        How far from its present size a size may move, as a fraction of it.
    multiple
        The number that new sizes have to be multiples of, for your engine.
    uniform
        Which sizes have to be equal: those of one module, of one role in all layers, or of one
        kind.
    losses
        A JSON file that says what each size loses, as compress measures it. By default losses are
        estimated from the singular values of the factors.
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

    Examples
    --------
    >>> plan = gacprof.plan("tests/fixtures/checkpoints/asvd_mha_r1", "h100", objective="pad")
    >>> plan.sizes["model.layers.0.mlp.gate_proj:rank"]  # 149 before
    160
    >>> plan.parameters  # before and after
    (2754848, 2828032)
    """
    require_within("multiple", multiple, MAX_MULTIPLE)
    require_within("window", window, MAX_SEARCH)
    if budget is not None:
        require_within("budget", budget, MAX_BUDGET)
    if tp % 1 or ep % 1 or multiple % 1:
        raise ConfigError(f"tp is {tp}, ep {ep} and multiple {multiple}: give whole numbers")
    require_one_of("objective", objective, get_args(ObjectiveName))
    require_one_of("uniform", uniform, get_args(Uniform))
    inventory = inventory_of(checkpoint)
    size_source = open_source(source)
    products = products_for(inventory, size_source, tokens=tokens, tp=tp, ep=ep, dtype=dtype)
    dims = [dim for dim in inventory.dims if dim.adjustable]
    if not dims:
        raise PlanError(
            f"{inventory.path} has no dim whose size can change: nothing to plan"
            f"{factors_hint(inventory)}"
        )
    limits = limits_of(inventory, dims, budget, memory, latency)
    curves = loss_curves(inventory, dims, losses) if objective == "quality" else {}
    goal = Objective(objective, curves, scores or {})
    if objective == "gac":
        limits = limits or {"parameters": inventory.parameters}
        window = min(window, MAX_WINDOW)
    table = SizeTable(products, size_source)
    deployment = engine and deployment_of(inventory, size_source, engine, tp, ep)
    required = {dim.name: EngineMultiple(products.step_of(dim)) for dim in dims}
    if deployment:
        required |= engine_multiples(inventory, deployment)
    rules = SizeRules(read_pins(pin, dims), window, multiple, uniform, required)
    groups = size_groups(table, goal, rules)
    settled: dict[str, int | None] = {}
    for group in groups:
        if len(group.sizes) == 1:
            settled |= group.at(group.sizes[0])
    classes = classes_of(inventory, [group for group in groups if len(group.sizes) > 1])
    problem = Problem(table, goal, list(limits), settled)
    rest = _rest(table, classes, settled, limits)
    sizes, gap = dict(settled), 0.0
    if classes:
        options, sizes_of = flat([scenarios_of(problem, c) for c in classes])
        least = [rest[x] + options.least(i) for i, x in enumerate(limits)]
        _require_within_limits(limits, least, "the least of what was compared")
        solution = solve_options(options, [limits[name] - rest[name] for name in limits])
        gap = solution.bound - solution.value
        for i in solution.choice:
            sizes |= sizes_of[i]
    left_out = sum(c.joint_count - len(c.joint_sizes) for c in classes)
    chosen = _plan_of(table, goal, sizes, limits, gap, left_out)
    if deployment:
        chosen = _for_engine(chosen, inventory, deployment, required)
    _check(table, chosen)
    if out is not None:
        chosen.save(out)
    return chosen


def deployment_of(
    inventory: Inventory, source: SizeSource, engine: str, tp: int, ep: int
) -> ConfigDeployment:
    """Return a checkpoint as an engine serves it, on the GPU whose rules the source is, else on
    any."""
    gpu = source.name if isinstance(source, Rules) else "any"
    return deploy(inventory.config, engine=engine, gpu=gpu, tp=tp, ep=ep)


def _for_engine(
    chosen: Plan,
    inventory: Inventory,
    deployment: ConfigDeployment,
    required: Mapping[str, EngineMultiple],
) -> Plan:
    """Add to a plan what the engine requires of its sizes, what it makes of them, and what else it
    would serve."""
    ranks = f"tp {deployment.tp}" + (f", ep {deployment.ep}" if deployment.ep > 1 else "")
    config = with_widths(deployment.config, inventory.dims, chosen.sizes)
    judgements = replace(deployment, config=config).judgements()
    broken = [judgement for judgement in judgements if judgement.findings]
    return replace(
        chosen,
        choices=tuple(replace(c, required=required.get(c.dim, ANY_SIZE)) for c in chosen.choices),
        engine=f"{deployment.engine.name} {deployment.engine.version}, {ranks}",
        outcome=overall(judgements),
        unmended=tuple(f"{j.product.name}: {j.outcome}: {j.findings[0].says}" for j in broken),
        alternatives=tuple(find_remedies(deployment, deployment.judgements())),
    )


def _require_within_limits(limits: Limits, takes: Sequence[float], what: str) -> None:
    """Raise :class:`PlanError` for a limit that an amount of ``takes`` exceeds; ``what`` takes
    them."""
    for (name, most), amount in zip(limits.items(), takes, strict=True):
        if amount > most * (1 + ROUNDING):
            raise PlanError(
                f"the limit of {most:,.0f} {UNITS[name]} cannot be kept: {what} takes "
                f"{amount:,.0f} {UNITS[name]}: raise it, widen the window, or pin fewer sizes"
            )


def _check(table: SizeTable, chosen: Plan) -> None:
    """Raise :class:`PlanError` where a plan breaks a promise, whatever path led to it: its limits,
    that realigning takes every size, and that the source (or an engine) knows of some."""
    inventory = table.products.inventory
    sizes = {choice.dim: choice.after for choice in chosen.choices}
    refusal = sizes_refusal(inventory, sizes)
    if refusal:
        raise PlanError(f"{inventory.path} cannot have the planned sizes: {refusal}")
    is_known = any(choice.verdict != "unknown" for choice in chosen.choices)
    if not is_known and chosen.latency_us is None and not chosen.engine:
        raise PlanError(
            f"{chosen.source} knows nothing of the {len(sizes)} sizes of {chosen.checkpoint}: "
            f"{advice(table.source)}"
        )
    takes = {"parameters": float(chosen.parameters[1]), "bytes": float(chosen.nbytes[1])}
    if "latency_us" in chosen.limits:
        takes["latency_us"] = chosen.latency_us[1].value if chosen.latency_us else inf
    amounts = [takes[name] for name in chosen.limits]
    _require_within_limits(chosen.limits, amounts, "the plan")


def _rest(
    table: SizeTable, classes: Sequence[DimClass], settled: NewSizes, limits: Limits
) -> dict[LimitName, float]:
    """Return what weights outside all classes take of each limit. Raises :class:`PlanError` for a
    limit on time where the source doesn't know the time of a product."""
    inventory, products = table.products.inventory, table.products
    parts = list(chain.from_iterable(c.parts for c in classes))
    chosen = {info.stored_at for info in chain.from_iterable(part.tensors for part in parts)}
    tensors = [info for info in inventory.tensors.values() if info.stored_at not in chosen]
    names = {module.name for module in chain.from_iterable(part.modules for part in parts)}
    modules = [module for module in inventory.modules if module.name not in names]
    parameters, nbytes = footprint(inventory, tensors, settled, modules)
    rest: dict[LimitName, float] = {"parameters": parameters, "bytes": nbytes}
    if "latency_us" in limits:
        stored_us = products.time_us(table.source, inventory.modules)
        rest_us = products.time_us(table.source, modules, settled)
        if stored_us is None or rest_us is None:
            raise PlanError(
                f"{table.source.name} doesn't know the latency of every product, which a limit on "
                f"it needs: leave it out, or {advice(table.source)}"
            )
        rest["latency_us"] = rest_us.value
    return rest


def _plan_of(
    table: SizeTable, goal: Objective, sizes: NewSizes, limits: Limits, gap: float, left_out: int
) -> Plan:
    """Return the chosen sizes as a plan, each judged beside the other dims' new ones."""
    inventory, products = table.products.inventory, table.products
    tensors = list(inventory.tensors.values())
    parameters, nbytes = footprint(inventory, tensors)
    new_parameters, new_nbytes = footprint(inventory, tensors, sizes, inventory.modules)
    us_before = products.time_us(table.source, inventory.modules)
    us_after = products.time_us(table.source, inventory.modules, sizes)
    choices = []
    for name, size in sizes.items():
        dim = inventory.dim(name)
        if size is None:
            verdict = table.merged_verdict(dim, sizes)
        else:
            verdict = table.verdict(dim, size, sizes).verdict
        loss = goal.loss(dim, size)
        choices.append(Choice(name, dim.kind, dim.size, size, verdict, loss))
    value = goal.value([inventory.dim(name) for name in sizes], sizes, new_parameters)
    return Plan(
        checkpoint=inventory.path,
        fingerprint=inventory.fingerprint,
        source=table.source.name,
        provenance=table.source.provenance,
        objective=goal.name,
        tokens=products.tokens,
        tp=products.tp,
        choices=tuple(choices),
        parameters=(parameters, new_parameters),
        nbytes=(nbytes, new_nbytes),
        latency_us=(us_before, us_after) if us_before and us_after else None,
        value=value,
        bound=value + gap,
        limits=limits,
        not_compared=left_out,
    )
