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


@dataclass(frozen=True)
class Limits:
    """What a plan must keep to, over all planned dims; None is no limit.

    ``parameters`` is a count, ``latency_us`` the workload's predicted time in the products of
    the planned weights, of which they take ``latency_now_us`` as they are; ``energy_kept`` is
    the least mean share of energy. Of latency and energy only one can be limited: the solver
    knows two resources.
    """

    parameters: int | None = None
    latency_us: float | None = None
    latency_now_us: float | None = None
    energy_kept: float | None = None


def solve_classes(
    goal: Objective,
    classes: Sequence[DimClass],
    offered: Mapping[str, Sequence[Option]],
    limits: Limits,
    *,
    time_limit: float | None = None,
    progress: Callable[..., None] | None = None,
) -> Outcome:
    """Choose one offered option a class, within the limits.

    Among options of equal value only the cheapest is kept, so that nothing is padded further
    than the objective asks. Raises :class:`PlanError` where no class has an option, and
    :class:`InfeasibleBudget` naming the nearest budget or limit that can be met.
    """
    free = [group for group in classes if offered[group.name]]
    if not free:
        reason = next((group.missing for group in classes if group.missing), "")
        raise PlanError(
            "the map knows no safe size for any dim of this checkpoint"
            + (f": {reason}" if reason else "")
        )
    stuck = sum(group.before for group in classes if not offered[group.name])
    options = [_cheapest_of_equals(goal, group, offered[group.name], limits) for group in free]
    costs = [[option.cost for option in row] for row in options]
    values = [
        [goal.value(group, option) for option in row]
        for group, row in zip(free, options, strict=True)
    ]
    ceiling = sum(max(row) for row in costs)
    wanted = limits.parameters
    budget = ceiling if wanted is None else min(wanted - stuck, ceiling)
    second = _second_resource(free, options, limits)
    try:
        solution = solve(costs, values, budget, **second, seconds=time_limit, progress=progress)
    except InfeasibleBudget as error:
        raise _in_terms_of_the_plan(error, limits, stuck, free, second) from None
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


def _second_resource(
    free: Sequence[DimClass], options: Sequence[Sequence[Option]], limits: Limits
) -> dict[str, Any]:
    """The solver's second resource: predicted latency, or energy lost."""
    if limits.latency_us is not None and limits.energy_kept is not None:
        raise PlanError("give either a latency limit or a quality floor, not both")
    if limits.latency_us is not None:
        saved = [_savings(group, row) for group, row in zip(free, options, strict=True)]
        most = [max(row) for row in saved]
        # What a choice does not save of the most that its class can. Classes that share a
        # product (a rank and a width) are added up as if the other did not change.
        return {
            "latency": [[m - s for s in row] for m, row in zip(most, saved, strict=True)],
            "limit": limits.latency_us - _now(limits) + sum(most),
        }
    if limits.energy_kept is not None:
        return {
            "latency": [
                [len(group.members) - (o.kept or 0.0) for o in row]
                for group, row in zip(free, options, strict=True)
            ],
            "limit": (1 - limits.energy_kept) * _members(free),
        }
    return {}


def _savings(group: DimClass, row: Sequence[Option]) -> list[float]:
    """Time that each option saves against the class as it is (µs, negative where slower)."""
    before = group.untouched.latency_us
    after = [option.latency_us for option in row]
    if before is None or any(t is None for t in after):
        raise PlanError(f"the latency of {group.name} is not known: no limit can be kept")
    return [before - t for t in after if t is not None]


def _now(limits: Limits) -> float:
    if limits.latency_now_us is None:
        raise PlanError("the map lacks some of the planned products: no latency limit can be kept")
    return limits.latency_now_us


def _members(groups: Sequence[DimClass]) -> int:
    return sum(len(group.members) for group in groups)


def _in_terms_of_the_plan(
    error: InfeasibleBudget,
    limits: Limits,
    stuck: int,
    free: Sequence[DimClass],
    second: Mapping[str, Any],
) -> InfeasibleBudget:
    """The solver's refusal, counted over all planned dims, as the user counts."""
    if error.resource == "limit" and limits.energy_kept is not None:
        kept = 1 - float(error.nearest) / _members(free)
        told = f"no plan keeps {limits.energy_kept:.4f} of the energy; the nearest is {kept:.4f}"
        return InfeasibleBudget(told, "limit", kept)
    if error.resource == "limit":
        assert limits.latency_us is not None
        least = float(error.nearest) - second["limit"] + limits.latency_us
        told = f"no plan is within {limits.latency_us:.1f} µs; the nearest is {least:.1f} µs"
        return InfeasibleBudget(told, "limit", least)
    nearest = int(error.nearest) + stuck
    return InfeasibleBudget(
        f"no plan fits {limits.parameters:,} parameters in the planned dims; the nearest budget "
        f"that can be met is {nearest:,}",
        "budget",
        nearest,
    )


def _cheapest_of_equals(
    goal: Objective, group: DimClass, offered: Sequence[Option], limits: Limits
) -> list[Option]:
    cheapest: dict[tuple[float, float | None, float | None], Option] = {}
    for option in sorted(offered, key=lambda o: (o.cost, o.size)):
        latency = option.latency_us if limits.latency_us is not None else None
        cheapest.setdefault((goal.value(group, option), option.kept, latency), option)
    return sorted(cheapest.values(), key=lambda o: o.size)
