"""From classes and an objective to the solver and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gacprof.errors import PlanError
from gacprof.planning.classes import DimClass, Option
from gacprof.planning.objectives import Objective
from gacprof.planning.schema import Certificate
from gacprof.solver import InfeasibleBudget, solve


@dataclass(frozen=True)
class Outcome:
    """The chosen option by class name; None where a class had none and stays as it is."""

    chosen: Mapping[str, Option | None]
    certificate: Certificate


def solve_classes(
    goal: Objective,
    classes: Sequence[DimClass],
    offered: Mapping[str, Sequence[Option]],
    limit: int | None,
    *,
    quality_floor: float = 0.0,
    time_limit: float | None = None,
    progress: Callable[..., None] | None = None,
) -> Outcome:
    """Choose one offered option a class, within ``limit`` parameters over all classes.

    Among options of equal value only the cheapest is kept, so that nothing is padded further
    than the objective asks. ``quality_floor`` is the least mean share of energy kept.
    Raises :class:`PlanError` where no class has an option, and the solver's
    ``InfeasibleBudget`` naming the nearest budget that can be met.
    """
    free = [group for group in classes if offered[group.name]]
    if not free:
        reason = next((group.missing for group in classes if group.missing), "")
        raise PlanError(
            "the map knows no safe size for any dim of this checkpoint"
            + (f": {reason}" * bool(reason))
        )
    stuck = sum(group.before for group in classes if not offered[group.name])
    options = [_cheapest_of_equals(goal, group, offered[group.name]) for group in free]
    costs = [[option.cost for option in row] for row in options]
    values = [
        [goal.value(group, option) for option in row]
        for group, row in zip(free, options, strict=True)
    ]
    ceiling = sum(max(row) for row in costs)
    budget = ceiling if limit is None else min(limit - stuck, ceiling)
    extra: dict[str, Any] = {"time_limit": time_limit, "progress": progress}
    if quality_floor > 0:
        members = sum(len(group.members) for group in free)
        extra["latency"] = [
            [len(group.members) - (option.kept or 0.0) for option in row]
            for group, row in zip(free, options, strict=True)
        ]
        extra["limit"] = (1 - quality_floor) * members
    try:
        solution = solve(costs, values, budget, **extra)
    except InfeasibleBudget as error:
        raise _in_terms_of_the_plan(error, limit, stuck, quality_floor, extra) from None
    chosen: dict[str, Option | None] = {group.name: None for group in classes}
    for group, row, j in zip(free, options, solution.choice, strict=True):
        chosen[group.name] = row[int(j)]
    certificate = Certificate(
        solver="exact multi-choice knapsack",
        value=float(solution.value),
        bound=float(solution.bound),
        gap=float(solution.gap),
        proved=bool(solution.proved),
        notes=list(solution.notes),
    )
    return Outcome(chosen, certificate)


def _in_terms_of_the_plan(
    error: InfeasibleBudget,
    limit: int | None,
    stuck: int,
    quality_floor: float,
    extra: Mapping[str, Any],
) -> InfeasibleBudget:
    """The solver's refusal, counted over all planned dims, as the user counts."""
    if error.resource == "limit":
        kept = 1 - float(error.nearest) * (1 - quality_floor) / extra["limit"]
        return InfeasibleBudget(
            f"no plan keeps {quality_floor:.4f} of the energy; the nearest that can be met is "
            f"{kept:.4f}",
            "limit",
            kept,
        )
    nearest = int(error.nearest) + stuck
    return InfeasibleBudget(
        f"no plan fits {limit:,} parameters in the planned dims; the nearest budget that can be "
        f"met is {nearest:,}",
        "budget",
        nearest,
    )


def _cheapest_of_equals(
    goal: Objective, group: DimClass, offered: Sequence[Option]
) -> list[Option]:
    cheapest: dict[tuple[float, float | None], Option] = {}
    for option in sorted(offered, key=lambda o: (o.cost, o.size)):
        cheapest.setdefault((goal.value(group, option), option.kept), option)
    return sorted(cheapest.values(), key=lambda o: o.size)
