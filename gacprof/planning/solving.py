"""Making a plan: the choices there are, the best of them by the solver, and what they come to.

Classes share no weights and no products, so that their costs and times add up to those of the plan,
all of its dims resized together.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gacprof.checkpoint import inventory_for
from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.tensors import ModelReader
from gacprof.core import Progress
from gacprof.core.errors import PlanError
from gacprof.planning.classes import DimClass, Option
from gacprof.planning.coupled import Kept, Size
from gacprof.planning.limits import ROUNDING, Ceiling, Limits, References, TimeLimit
from gacprof.planning.objectives import Lost
from gacprof.planning.problem import Problem, problem_of
from gacprof.planning.request import PlanRequest
from gacprof.planning.schema import Certificate, Plan
from gacprof.solver import InfeasibleBudget, solve

TIE = 1e-7
"""All parameters of a plan count as much against it as this part of the largest value of an
option, so that of plans worth the same the smallest is chosen."""


@dataclass(frozen=True)
class Outcome:
    """The chosen option of each class, and what is proved of the choice."""

    classes: Sequence[DimClass]
    chosen: Sequence[Option]
    certificate: Certificate

    @property
    def sizes(self) -> dict[str, Size]:
        """By dim name; None where the factors are multiplied out."""
        pairs = zip(self.classes, self.chosen, strict=True)
        return {name: size for group, o in pairs for name, size in group.sizes(o).items()}


@dataclass(frozen=True)
class _Limit:
    """One resource of the solver: what each option takes of it, and the most that all may take.
    ``refused`` says in the user's terms what would do; ``is_value``: less of it is what the
    objective itself is after."""

    rows: Sequence[Sequence[float]]
    most: float
    refused: Callable[[float], InfeasibleBudget]
    is_value: bool = False


def make_plan(
    request: PlanRequest,
    *,
    kept: Kept | None = None,
    lost: Lost | None = None,
    references: References | None = None,
) -> Plan:
    """Choose one size for every adjustable dim.

    The request's time limit or Ctrl-C ends a search early with its best plan and the gap. Where
    the original weights are at hand, ``kept`` are the shares of energy kept, and ``lost`` what
    sizes add to the loss; ``references`` is what limits on time are relative to.

    Raises :class:`CheckpointError`, :class:`MapError`, :class:`PlanError`, or :class:`SolverError`
    naming the nearest feasible budget.
    """
    from gacprof.planning.evaluation import summary

    seconds = request.time_limit
    deadline = None if seconds is None else time.monotonic() + seconds
    source, reader = request.open_source(), None
    if isinstance(request.checkpoint, str | Path | Inventory):
        inventory = inventory_for(request.checkpoint)
    else:
        reader = ModelReader(request.checkpoint)
        inventory = reader.inventory
    problem = problem_of(
        inventory, source, request, reader=reader, kept=kept, lost=lost, references=references
    )

    def solved(limits: Limits) -> Plan:
        classes = problem.classes(limits)
        outcome = solve_classes(
            problem, classes, limits, deadline=deadline, progress=request.progress
        )
        return summary(problem, outcome, limits)

    limits = problem.limits()
    try:
        return solved(limits)
    except InfeasibleBudget:
        if not limits.break_even:
            raise
        return solved(replace(limits, break_even=False))


def solve_classes(
    problem: Problem,
    classes: Sequence[DimClass],
    limits: Limits,
    *,
    deadline: float | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Choose one option a class, within the limits. What the objective itself makes the most of is
    no resource beside the others: the best there is meets the limit, or nothing does.

    ``deadline`` is on the monotonic clock; ``progress`` gets the best value so far and its bound.
    Raises :class:`PlanError` where the map does not hold the products that would show that a limit
    is kept; :class:`InfeasibleBudget` naming the nearest budget or limit that can be met.
    """
    every = _limits(problem, classes, limits)
    resources = [each for each in every if not each.is_value]
    options = [group.options for group in classes]
    scale = max(abs(option.value) for row in options for option in row)
    per_unit = TIE * scale / sum(max(option.cost for option in row) + 1 for row in options)
    left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
    try:
        solution = solve(
            [[option.value - per_unit * option.cost for option in row] for row in options],
            [(resource.rows, resource.most) for resource in resources],
            seconds=left,
            progress=progress,
        )
    except InfeasibleBudget as error:
        raise resources[error.resource].refused(error.nearest) from None
    for each in every:
        takes = math.fsum(row[j] for row, j in zip(each.rows, solution.choice, strict=True))
        if each.is_value and takes > each.most:
            raise each.refused(takes)
    chosen = [row[j] for row, j in zip(options, solution.choice, strict=True)]
    value = math.fsum(option.value for option in chosen)
    gap = 0.0 if solution.proved else solution.gap + TIE * scale
    narrowed = dict.fromkeys(group.narrowed for group in classes if group.narrowed)
    certificate = Certificate(
        solver="exact multi-choice knapsack",
        measures=problem.goal.measures,
        value=value,
        bound=value + gap,
        gap=gap,
        proved=solution.proved and not narrowed,
        interrupted=solution.interrupted,
        notes=[
            *solution.notes,
            *(f"{why}: the proof is not over all joint sizes" for why in narrowed),
        ],
    )
    return Outcome(classes, chosen, certificate)


def _limits(problem: Problem, classes: Sequence[DimClass], limits: Limits) -> list[_Limit]:
    options = [group.options for group in classes]
    found = []
    for ceiling, rows in (
        (limits.parameters, [[option.cost for option in row] for row in options]),
        (limits.memory, [[option.nbytes for option in row] for row in options]),
    ):
        if ceiling is not None:
            found.append(_Limit(rows, ceiling.most, _over(ceiling)))
    for place, each in enumerate(limits.times):
        is_value = problem.goal.name == "latency" and each.predictor is problem.predictor
        found.append(replace(_latency(classes, place, each), is_value=is_value))
    if limits.energy_kept is not None:
        energy = _energy(classes, limits.energy_kept)
        found.append(replace(energy, is_value=problem.goal.name == "energy"))
    return found


def _over(ceiling: Ceiling) -> Callable[[float], InfeasibleBudget]:
    def refused(nearest: float) -> InfeasibleBudget:
        least = ceiling.as_given(math.ceil(nearest))
        message = f"no plan fits {ceiling.basis}; the nearest budget that can be met is {least}"
        return InfeasibleBudget(message, 0, math.ceil(nearest))

    return refused


def _latency(classes: Sequence[DimClass], place: int, limit: TimeLimit) -> _Limit:
    """µs of all products of the planned weights at the workload of one limit."""
    rows = []
    for group in classes:
        known = [us for o in group.options if (us := o.limited_us[place]) is not None]
        if len(known) < len(group.options):
            near = limit.predictor.with_sizes(group.sizes(group.options[0]))
            fed = (near.product(feed.weight) for dim in group.members for feed in dim.feeds)
            why = next((f": {product.missing}" for product in fed if product.missing), "")
            raise PlanError(
                "no latency limit can be kept: the map does not hold the planned sizes of "
                f"{group.axes[0].name} together with what it meets; sweep them, or pin what shares "
                f"a product with others (--pin '*:width=keep'){why}"
            )
        rows.append(known)

    def refused(nearest: float) -> InfeasibleBudget:
        least = math.ceil(nearest * 10) / 10  # as said, it can be met
        message = f"no plan is within {limit.asked}; the nearest is {limit.within(least)}"
        return InfeasibleBudget(message, 0, least)

    return _Limit(rows, limit.most_us, refused)


def _energy(classes: Sequence[DimClass], floor: float) -> _Limit:
    """The shares of energy lost, summed over dims."""
    rows, members = [], 0
    for group in classes:
        count = len(list(group.members))
        kept = [o.kept for o in group.options if o.kept is not None]
        if len(kept) < len(group.options):
            name = group.axes[0].name
            raise PlanError(f"what {name} would keep is not known: no quality floor can be kept")
        rows.append([count - each for each in kept])
        members += count

    def refused(nearest: float) -> InfeasibleBudget:
        kept = math.floor((1 - nearest / members) * 1e4) / 1e4
        return InfeasibleBudget(
            f"no plan keeps {floor:.4f} of the energy; the nearest is {kept:.4f}", 0, kept
        )

    return _Limit(rows, (1 - floor) * members * (1 + ROUNDING) + ROUNDING, refused)
