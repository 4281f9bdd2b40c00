"""The best of the choices: one option a class, within the limits, with the proof."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from gacprof.core import Progress
from gacprof.core.errors import PlanError
from gacprof.planning.axes import Size
from gacprof.planning.classes import ClassOption, DimClass
from gacprof.planning.limits import EnergyFloor, Limit, PlanLimits, TimeLimit
from gacprof.planning.problem import Problem
from gacprof.planning.schema import Certificate
from gacprof.solver import InfeasibleBudget, Solution, solve

TIE = 1e-7
"""All parameters of a plan count as much against it as this part of the largest value of an
option, so that of plans worth the same the smallest is chosen."""


@dataclass(frozen=True)
class SolvedClasses:
    """The chosen option of each class, and what is proved of the choice."""

    classes: Sequence[DimClass]
    chosen: Sequence[ClassOption]
    certificate: Certificate

    @property
    def sizes(self) -> dict[str, Size]:
        """By dim name; None where the factors are multiplied out."""
        pairs = zip(self.classes, self.chosen, strict=True)
        return {name: size for group, o in pairs for name, size in group.sizes(o).items()}


def solve_within(
    problem: Problem,
    classes_of: Callable[[PlanLimits], Sequence[DimClass]],
    limits: PlanLimits,
    *,
    deadline: float | None = None,
    progress: Progress | None = None,
) -> tuple[SolvedClasses, PlanLimits]:
    """The best choice of factor pairs that are as fast as the dense products in their place, or
    where the limits leave none, of all pairs; and the limits that were kept. Raises as
    :func:`solve_classes`."""

    def solved(kept: PlanLimits) -> tuple[SolvedClasses, PlanLimits]:
        classes = classes_of(kept)
        return solve_classes(problem, classes, kept, deadline=deadline, progress=progress), kept

    try:
        return solved(limits)
    except InfeasibleBudget:
        if not limits.break_even:
            raise
        return solved(replace(limits, break_even=False))


def solve_classes(
    problem: Problem,
    classes: Sequence[DimClass],
    limits: PlanLimits,
    *,
    deadline: float | None = None,
    progress: Progress | None = None,
) -> SolvedClasses:
    """Choose one option a class, within the limits. What the objective itself makes the most of is
    no further resource: the best there is meets the limit, or nothing does.

    ``deadline`` is on the monotonic clock; ``progress`` gets the best value so far and its bound.
    Raises :class:`PlanError` where the map does not hold the products that would show that a limit
    is kept; :class:`InfeasibleBudget` naming the nearest budget or limit that can be met.
    """
    every = resources(problem, classes, limits)
    options = [group.options for group in classes]
    scale = max(abs(option.value) for row in options for option in row)
    per_unit = TIE * scale / sum(max(option.parameters for option in row) + 1 for row in options)
    values = [[option.value - per_unit * option.parameters for option in row] for row in options]
    others = [(each.rows, each.limit.most) for each in every if not each.is_value]
    left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
    try:
        solution = solve(values, others, seconds=left, progress=progress)
    except InfeasibleBudget:
        raise _nearest(values, every) from None
    for each in every:
        takes = math.fsum(row[j] for row, j in zip(each.rows, solution.choice, strict=True))
        if each.is_value and takes > each.limit.most:
            raise each.limit.refused(takes)
    chosen = [row[j] for row, j in zip(options, solution.choice, strict=True)]
    narrowed = dict.fromkeys(group.narrowed for group in classes if group.narrowed)
    proof = _certificate(problem, chosen, solution, TIE * scale, narrowed)
    return SolvedClasses(classes, chosen, proof)


def _certificate(
    problem: Problem,
    chosen: Sequence[ClassOption],
    solution: Solution,
    tie: float,
    narrowed: Iterable[str],
) -> Certificate:
    """What is proved of the choice: ``tie`` is by how much values were changed to break ties,
    ``narrowed`` what keeps options from being of all joint sizes."""
    value = math.fsum(option.value for option in chosen)
    gap = 0.0 if solution.proved else solution.gap + tie
    notes = [f"{why}: the proof is not over all joint sizes" for why in narrowed]
    return Certificate(
        solver="exact multi-choice knapsack",
        measures=problem.goal.measures,
        value=value,
        bound=value + gap,
        gap=gap,
        proved=solution.proved and not notes,
        interrupted=solution.interrupted,
        notes=[*solution.notes, *notes],
    )


@dataclass(frozen=True)
class _Resource:
    """What each option takes of what is limited. ``is_value``: less of it is what the objective
    itself is after."""

    rows: Sequence[Sequence[float]]
    limit: Limit
    is_value: bool

    @property
    def least(self) -> float:
        return math.fsum(map(min, self.rows))


def _nearest(values: Sequence[Sequence[float]], every: Sequence[_Resource]) -> InfeasibleBudget:
    """The nearest that would do of one limit within all others, the value's own among them; where
    none would do, the limit that no sizes keep, or the fewest limits that exclude each other."""
    error = _infeasible(values, every)
    assert error is not None, "fewer limits cannot be harder to keep"
    if error.enough:
        return every[error.resource].limit.refused(error.nearest)
    together = list(every)
    for each in every:
        fewer = [other for other in together if other is not each]
        if fewer and _infeasible(values, fewer):
            together = fewer
    if len(together) == 1:
        return together[0].limit.refused(together[0].least, alone=True)
    named = " and ".join(each.limit.asked for each in together)
    message = f"no plan keeps these limits together: {named}; loosen one of them"
    return InfeasibleBudget(message, 0, math.inf, enough=False)


def _infeasible(
    values: Sequence[Sequence[float]], limits: Sequence[_Resource]
) -> InfeasibleBudget | None:
    try:
        solve(values, [(each.rows, each.limit.most) for each in limits])
    except InfeasibleBudget as error:
        return error
    return None


def resources(problem: Problem, classes: Sequence[DimClass], limits: PlanLimits) -> list[_Resource]:
    """Of every limit. Raises :class:`PlanError` where what an option takes of it is not known."""
    return [_resource(problem, classes, limits, i) for i in range(len(limits.every))]


def _resource(
    problem: Problem, classes: Sequence[DimClass], limits: PlanLimits, i: int
) -> _Resource:
    """What the classes take of the limit at this place. Raises :class:`PlanError` where that is not
    known of one of them."""
    limit = limits.every[i]
    rows = [[option.takes[i] for option in group.options] for group in classes]
    group = next((g for g, r in zip(classes, rows, strict=True) if any(map(math.isnan, r))), None)
    if group is None:
        by_time = isinstance(limit, TimeLimit) and limit.predictor is problem.predictor
        after = "latency" if by_time else "energy" if isinstance(limit, EnergyFloor) else None
        return _Resource(rows, limit, problem.goal.name == after)
    name = group.axes[0].name
    if not isinstance(limit, TimeLimit):
        raise PlanError(f"what {name} would keep is not known: no quality floor can be kept")
    near = limit.predictor.with_sizes(group.sizes(group.options[0]))
    fed = (near.product(feed.weight) for dim in group.members for feed in dim.feeds)
    why = next((f": {product.missing}" for product in fed if product.missing), "")
    raise PlanError(
        f"no latency limit can be kept: the map does not hold the planned sizes of {name} together "
        "with what it meets; sweep them, or pin what shares a product with others (--pin "
        f"'*:width=keep'){why}"
    )
