"""Making a plan: classes, objective, solver, and an account of what it will do."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gacprof.checkpoint.inventory import Dim, Inventory
from gacprof.cliffmap import CliffMap
from gacprof.diagnosing.predict import Predictor
from gacprof.errors import PlanError
from gacprof.planning.classes import Constraints, DimClass, Option, build_classes
from gacprof.planning.objectives import Objective, objective
from gacprof.planning.schema import Budget, Choice, Plan, Workload
from gacprof.planning.solving import Limits, Outcome, solve_classes
from gacprof.planning.spectra import energy_kept
from gacprof.solver import InfeasibleBudget

WINDOW = 0.25


@dataclass(frozen=True)
class Limit:
    """A parameter budget over the planned dims, and how it was arrived at.

    ``as_given`` says a number of planned parameters in the terms that the user set it in.
    """

    parameters: int | None
    basis: str
    as_given: Callable[[int], str] = "{:,} parameters in the planned dims".format


def make_plan(
    inventory: Inventory,
    cliff_map: CliffMap,
    *,
    aim: str = "energy",
    budget: float | None = None,
    budget_parameters: int | None = None,
    tokens: Mapping[int, float] | None = None,
    dtype: str | None = None,
    window: float = WINDOW,
    constraints: Constraints | None = None,
    scores: Mapping[str, float] | None = None,
    quality_floor: float | None = None,
    latency_limit_us: float | None = None,
    time_limit: float | None = None,
    progress: Callable[..., None] | None = None,
) -> Plan:
    """Choose one size for every adjustable dim of ``inventory``.

    ``budget`` is a fraction of the dense size of the planned weights, ``budget_parameters``
    a count for the whole checkpoint; with neither, memory is not limited and the default
    objective loses nothing. ``quality_floor`` is the least mean share of energy kept,
    ``latency_limit_us`` the most time that the workload may take in the planned weights'
    products. ``time_limit`` (seconds) ends a search early with its best plan and the gap.

    Raises :class:`PlanError`, or :class:`SolverError` naming the nearest feasible budget.
    """
    if not inventory.dims:
        raise PlanError(f"{inventory.path} has no adjustable dims: there is nothing to plan")
    goal = objective(aim, scores)
    predictor = Predictor(cliff_map, inventory, tokens, dtype)
    needs_spectra = aim in ("energy", "latency") or quality_floor is not None
    kept = energy_kept(inventory, inventory.dims) if needs_spectra else {}
    classes = build_classes(
        predictor,
        inventory.dims,
        window=window,
        constraints=constraints or Constraints(),
        kept=kept,
    )
    limit = _limit(inventory, classes, budget, budget_parameters)
    offered = {group.name: goal.eligible(group) for group in classes}
    try:
        outcome = solve_classes(
            goal,
            classes,
            offered,
            Limits(
                limit.parameters, latency_limit_us, predictor.weights({}).latency_us, quality_floor
            ),
            time_limit=time_limit,
            progress=progress,
        )
    except InfeasibleBudget as error:
        if error.resource != "budget" or limit.parameters is None:
            raise
        nearest = limit.as_given(int(error.nearest))
        told = f"no plan fits {limit.basis}; the nearest budget that can be met is {nearest}"
        raise InfeasibleBudget(told, "budget", error.nearest) from None
    made = _account(inventory, predictor, goal, classes, offered, outcome, limit)
    return made.model_copy(update={"warnings": [*made.warnings, *_over(made, latency_limit_us)]})


def _limit(
    inventory: Inventory,
    classes: Sequence[DimClass],
    budget: float | None,
    budget_parameters: int | None,
) -> Limit:
    if budget is not None and budget_parameters is not None:
        raise PlanError("give either a budget fraction or a number of parameters, not both")
    if budget_parameters is not None:
        before = sum(group.before for group in classes)
        rest = inventory.parameters - before
        if budget_parameters <= rest:
            raise PlanError(
                f"{budget_parameters:,} parameters are fewer than the {rest:,} that no plan can "
                f"change; as it is the checkpoint has {inventory.parameters:,}"
            )
        return Limit(
            budget_parameters - rest,
            f"{budget_parameters:,} parameters in all, of which {rest:,} are not planned",
            lambda planned: f"{planned + rest:,} parameters in all",
        )
    if budget is not None:
        if not 0 < budget < float("inf"):
            raise PlanError(f"the budget {budget} is no positive fraction of the dense size")
        dense = dense_parameters(inventory)
        return Limit(
            int(budget * dense),
            f"{budget:g} of {dense:,} dense parameters",
            lambda planned: f"{math.ceil(planned / dense * 1e4) / 1e4:g} of the dense size",
        )
    return Limit(None, "no limit was given")


def dense_parameters(inventory: Inventory) -> int:
    """Parameters of the planned weights were they dense: in × out for a factored weight.

    The width of a pruned layer is counted as it is: what it was before is not in the file.
    """
    kinds = {dim.name: dim.kind for dim in inventory.dims}
    factored = sum(
        module.in_features * module.out_features
        for module in inventory.modules
        if any(kinds.get(name) == "rank" for name in module.dims)
    )
    return factored + sum(
        dim.size * dim.params_per_unit for dim in inventory.dims if dim.kind != "rank"
    )


def _account(
    inventory: Inventory,
    predictor: Predictor,
    goal: Objective,
    classes: Sequence[DimClass],
    offered: Mapping[str, Sequence[Option]],
    outcome: Outcome,
    limit: Limit,
) -> Plan:
    choices = [
        _choice(predictor, dim, outcome.chosen[group.name], offered[group.name])
        for group in classes
        for dim in group.members
    ]
    changes = {c.dim: c.after for c in choices if c.after != c.before}
    before, after = predictor.weights({}), predictor.weights(changes)
    return Plan(
        checkpoint=inventory.path,
        fingerprint=inventory.fingerprint,
        layout=inventory.layout,
        map=predictor.map.name,
        device=predictor.map.environment.name,
        objective=goal.name,
        workload=Workload(tokens=predictor.tokens, dtype=predictor.dtype),
        budget=Budget(
            limit=limit.parameters,
            used=sum(c.cost for c in choices),
            before=sum(group.before for group in classes),
            basis=limit.basis,
        ),
        choices=choices,
        certificate=outcome.certificate,
        predicted_before_us=before.latency_us,
        predicted_after_us=after.latency_us,
        warnings=_warnings(inventory, predictor, goal, classes, offered, outcome),
    )


def _choice(
    predictor: Predictor, dim: Dim, chosen: Option | None, offered: Sequence[Option]
) -> Choice:
    sizes = [option.size for option in offered if not option.fused]
    common: dict[str, Any] = {
        "dim": dim.name,
        "kind": dim.kind,
        "before": dim.size,
        "latency_before_us": predictor.dim(dim, dim.size).latency_us,
        "window": (sizes[0], sizes[-1]) if sizes else None,
        "candidates": sizes,
        "fusable": any(option.fused for option in offered),
    }
    if chosen is not None and chosen.fused:
        return Choice(
            **common,
            after=None,
            action="fuse",
            cost=chosen.cost,
            latency_after_us=chosen.latency_us,
        )
    after = dim.size if chosen is None else chosen.size
    return Choice(
        **common,
        after=after,
        action="keep" if after == dim.size else "pad" if after > dim.size else "truncate",
        cost=after * dim.params_per_unit,
        latency_after_us=predictor.dim(dim, after).latency_us,
    )


def _warnings(
    inventory: Inventory,
    predictor: Predictor,
    goal: Objective,
    classes: Sequence[DimClass],
    offered: Mapping[str, Sequence[Option]],
    outcome: Outcome,
) -> list[str]:
    warnings = [predictor.dtype_note] if predictor.dtype_note else []
    refused = [d for d in inventory.dims if d.padding == "refused" and not d.ordered]
    if refused:
        warnings.append(f"{len(refused)} dims cannot be changed: {refused[0].why}")
    stuck = [group for group in classes if not offered[group.name]]
    if stuck:
        reason = stuck[0].missing or "the map knows no safe size near it"
        warnings.append(f"{len(stuck)} dims stay as they are, {stuck[0].name}: {reason}")
    at_end = sum(_at_an_end(outcome.chosen[g.name], offered[g.name]) for g in classes)
    if goal.name == "gac" and at_end > len(classes) / 2:
        warnings.append(
            f"{at_end} of {len(classes)} dims sit at an end of their window: Eq. 4 is linear in "
            "cost and says nothing about quality; prefer the objective 'energy'"
        )
    fused = sum(1 for o in outcome.chosen.values() if o is not None and o.fused)
    if fused:
        warnings.append(f"{fused} factor pairs are multiplied out: dense is no slower and fits")
    cut = [g for g in classes for o in [outcome.chosen[g.name]] if o and _cuts(g, o)]
    if cut:
        warnings.append(f"{len(cut)} dims are cut: the model's function changes")
    return warnings


def _over(made: Plan, latency_limit_us: float | None) -> list[str]:
    after = made.predicted_after_us
    if latency_limit_us is None or after is None or after <= latency_limit_us:
        return []
    return [
        f"predicted {after:.1f} µs is over the limit of {latency_limit_us:.1f} µs: dims that share "
        "a product were counted apart; lower the limit by the difference"
    ]


def _at_an_end(chosen: Option | None, offered: Sequence[Option]) -> bool:
    return chosen is not None and len(offered) > 1 and chosen in (offered[0], offered[-1])


def _cuts(group: DimClass, option: Option) -> bool:
    return not option.fused and any(option.size < dim.size for dim in group.members)
