"""Making a plan: the request on one checkpoint and one source, its choices, the best of them."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from gacprof.checkpoint import inventory_for
from gacprof.checkpoint.inventory import Dim, Inventory
from gacprof.checkpoint.tensors import ModelReader, TensorReader
from gacprof.cliffmap.source import SizeSource
from gacprof.core import Progress
from gacprof.core.errors import PlanError
from gacprof.core.texts import LatencyLimit, latency_limits
from gacprof.diagnosing.predict import NOTHING, Predictor
from gacprof.diagnosing.profiles import CoupledDims
from gacprof.diagnosing.whole import Whole, benched
from gacprof.planning.axes import Bounds, Dims, grouped
from gacprof.planning.classes import DimClass, Option, build_classes
from gacprof.planning.costs import Kept, Size
from gacprof.planning.limits import (
    ALONE,
    ROUNDING,
    Ceiling,
    Limits,
    References,
    TimeLimit,
    limits_of,
    refuse_unmeasured,
    without_times,
)
from gacprof.planning.objectives import Lost, Objective, check_scores, energy_kept, objective
from gacprof.planning.presets import Requirements, requirements
from gacprof.planning.request import PlanRequest, SizesRequest
from gacprof.planning.schema import Certificate, Plan
from gacprof.solver import InfeasibleBudget, solve

TIE = 1e-7
"""All parameters of a plan count as much against it as this part of the largest value of an
option, so that of plans worth the same the smallest is chosen."""


@dataclass(frozen=True)
class Problem:
    """What is known before any size is chosen. ``kept`` are the shares of energy that each rank
    keeps, empty where no spectra were read; ``groups`` the dims that take one size, and their
    bounds; ``required`` what an engine asks; ``limited`` the limits on time, ``references`` what
    they may be relative to, and ``whole`` a bench of the model or of the uncompressed one."""

    request: SizesRequest
    predictor: Predictor
    goal: Objective
    kept: Kept
    groups: Sequence[tuple[Dims, Bounds]]
    required: Requirements
    limited: tuple[LatencyLimit, ...] = ()
    references: References = field(default_factory=References)
    whole: Whole | None = None

    @property
    def inventory(self) -> Inventory:
        return self.predictor.inventory

    @cached_property
    def coupled(self) -> CoupledDims:
        return CoupledDims(self.predictor, self.request.window)

    def dense_us(self, dim: Dim) -> float | None:
        """The time of the dim's modules multiplied out."""
        modules = self.inventory.modules_of(dim.name)
        return sum((self.predictor.dense(module) for module in modules), NOTHING).latency_us

    def classes(self, limits: Limits) -> list[DimClass]:
        """The choices of the plan, their options kept apart for what is limited.

        Raises :class:`PlanError` where nothing is on offer at all.
        """
        classes = build_classes(self, limits)
        held = [axis for group in classes for axis in group.axes if axis.held]
        if len(held) == len(self.groups) and not self.predictor.noisy:
            why = self.predictor.tokens_note or f"({held[0].held})"
            sweep = "'gacprof sweep --for CHECKPOINT' measures what a plan needs "
            colon = ": " if self.predictor.tokens_note else f"; {sweep}"
            raise PlanError(
                f"the map knows no safe size for any dim of this checkpoint{colon}{why}"
            )
        return classes

    @cached_property
    def phases(self) -> dict[int, Predictor]:
        """The workload's token counts and those of the limits, each by itself."""
        named = [each.tokens for each in self.limited if each.tokens is not None]
        counts = sorted({*self.predictor.tokens, *named})
        return {count: self.predictor.at(count) for count in counts}

    @property
    def timed(self) -> tuple[Predictor, ...]:
        """Of every workload that is limited in time."""
        if self.request.dominate is not None:
            return tuple(self.phases.values())
        each = (self.phases.get(limit.tokens or 0, self.predictor) for limit in self.limited)
        return tuple({id(predictor): predictor for predictor in each}.values())


def problem_of(
    inventory: Inventory,
    source: SizeSource,
    request: SizesRequest,
    *,
    reader: TensorReader | None = None,
    all_spectra: bool = False,
    kept: Kept | None = None,
    references: References | None = None,
    lost: Lost | None = None,
) -> Problem:
    """Check the request against the checkpoint and the map, and read the spectra that the
    objective needs, or ``all_spectra``; ``reader`` reads tensors that are not on disk. Where the
    original weights are at hand, ``kept`` are the spectra, and reach beyond a dim's size; ``lost``
    is what sizes add to the loss, for the objective ``loss``.

    Raises :class:`PlanError`, or :class:`CheckpointError` for factors that cannot be read.
    """
    dims, constraints = inventory.dims, request.constraints
    if not dims:
        raise PlanError(f"{inventory.path} has no adjustable dims: there is nothing to plan")
    goal = objective(request.objective, request.scores, lost)
    limited = latency_limits(request.latency_limit_us)
    if not source.timed and goal.name == "latency":
        raise without_times(source)
    refuse_unmeasured(source, inventory, request)
    required = requirements(inventory, constraints.preset)
    tp = 1 if required.preset is None else required.preset.tp
    predictor = Predictor(source, inventory, request.tokens, request.dtype, tp)
    references = references or References()
    models = [inventory, *([references.dense] if references.dense else [])]
    whole = None if request.bench is None else benched(request.bench, models, predictor)
    free = [dim for dim in dims if dim.adjustable]
    if not free:
        raise PlanError(f"no dim of this checkpoint can be changed: {dims[0].why}")
    groups = grouped(free, constraints, required)
    unpinned = [dim.name for members, bounds in groups if bounds.pin is None for dim in members]
    check_scores(request.scores, [dim.name for dim in dims], unpinned)
    spectra = all_spectra or goal.name in ("energy", "latency") or request.least_kept is not None
    if kept is None:
        kept = energy_kept(inventory, dims, reader) if spectra else {}
    return Problem(request, predictor, goal, kept, groups, required, limited, references, whole)


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

    limits = limits_of(problem)
    try:
        return solved(limits)
    except InfeasibleBudget:
        if not limits.break_even:
            raise
        return solved(replace(limits, break_even=False))


def refuse_unreachable(request: PlanRequest, references: References | None = None) -> None:
    """Raise :class:`InfeasibleBudget` for a limit on time that no sizes on offer meet, whatever
    they lose, and :class:`PlanError` for one that is relative to what is not known. Sizes alone are
    looked at, no weights: it is known before any long work."""
    inventory = inventory_for(request.checkpoint)
    everything = {d.name: [1.0] * ((d.most or d.size) + 1) for d in inventory.dims}
    asked = replace(request, objective="energy", scores=None, quality_floor=None)
    problem = problem_of(
        inventory, request.open_source(), asked, kept=everything, references=references
    )
    limits = replace(limits_of(problem), break_even=False)
    try:
        classes = problem.classes(limits)
        times = [_times(classes, place, limit) for place, limit in enumerate(limits.times)]
    except PlanError:  # of sizes that another plan may not offer
        return
    for limit, rows in zip(limits.times, times, strict=True):
        fastest = math.fsum(map(min, rows))
        if fastest > limit.most_us:
            raise limit.refused(fastest, alone=True)


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
    every = _resources(problem, classes, limits)
    options = [group.options for group in classes]
    scale = max(abs(option.value) for row in options for option in row)
    per_unit = TIE * scale / sum(max(option.cost for option in row) + 1 for row in options)
    values = [[option.value - per_unit * option.cost for option in row] for row in options]
    others = [(each.rows, each.most) for each in every if not each.is_value]
    left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
    try:
        solution = solve(values, others, seconds=left, progress=progress)
    except InfeasibleBudget:
        raise _nearest(values, every) from None
    for each in every:
        takes = math.fsum(row[j] for row, j in zip(each.rows, solution.choice, strict=True))
        if each.is_value and takes > each.most:
            raise each.limit.refused(takes)
    chosen = [row[j] for row, j in zip(options, solution.choice, strict=True)]
    value = math.fsum(option.value for option in chosen)
    gap = 0.0 if solution.proved else solution.gap + TIE * scale
    narrowed = dict.fromkeys(group.narrowed for group in classes if group.narrowed)
    notes = [f"{why}: the proof is not over all joint sizes" for why in narrowed]
    certificate = Certificate(
        solver="exact multi-choice knapsack",
        measures=problem.goal.measures,
        value=value,
        bound=value + gap,
        gap=gap,
        proved=solution.proved and not narrowed,
        interrupted=solution.interrupted,
        notes=[*solution.notes, *notes],
    )
    return Outcome(classes, chosen, certificate)


@dataclass(frozen=True)
class _Resource:
    """What each option takes of what is limited, and the most that all may take. ``is_value``: less
    of it is what the objective itself is after."""

    rows: Sequence[Sequence[float]]
    most: float
    limit: Ceiling | TimeLimit | _Floor
    is_value: bool = False

    @property
    def least(self) -> float:
        return math.fsum(map(min, self.rows))


@dataclass(frozen=True)
class _Floor:
    """The least mean share of energy over so many dims."""

    kept: float
    dims: int

    @property
    def asked(self) -> str:
        return f"{self.kept:.4f} of the energy"

    def refused(self, nearest: float, alone: bool = False) -> InfeasibleBudget:
        """``alone``: by ``nearest`` no other limit is kept."""
        kept = math.floor((1 - nearest / self.dims) * 1e4) / 1e4
        message = f"no plan keeps {self.asked}; {ALONE * alone}the nearest is {kept:.4f}"
        return InfeasibleBudget(message, 0, kept, enough=not alone)


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
        solve(values, [(each.rows, each.most) for each in limits])
    except InfeasibleBudget as error:
        return error
    return None


def _resources(problem: Problem, classes: Sequence[DimClass], limits: Limits) -> list[_Resource]:
    rows = [group.options for group in classes]
    goal, found = problem.goal.name, list[_Resource]()
    if (room := limits.parameters) is not None:
        found.append(_Resource([[o.cost for o in row] for row in rows], room.most, room))
    if (room := limits.memory) is not None:
        found.append(_Resource([[o.nbytes for o in row] for row in rows], room.most, room))
    for place, limit in enumerate(limits.times):
        times = _times(classes, place, limit)
        is_value = goal == "latency" and limit.predictor is problem.predictor
        found.append(_Resource(times, limit.most_us, limit, is_value))
    if limits.energy_kept is not None:
        lost, dims = _lost(classes)
        most = (1 - limits.energy_kept) * dims * (1 + ROUNDING) + ROUNDING
        found.append(_Resource(lost, most, _Floor(limits.energy_kept, dims), goal == "energy"))
    return found


def _times(classes: Sequence[DimClass], place: int, limit: TimeLimit) -> list[list[float]]:
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
    return rows


def _lost(classes: Sequence[DimClass]) -> tuple[list[list[float]], int]:
    """The shares of energy lost, summed over dims, and how many these are."""
    rows, members = [], 0
    for group in classes:
        count = len(list(group.members))
        kept = [o.kept for o in group.options if o.kept is not None]
        if len(kept) < len(group.options):
            name = group.axes[0].name
            raise PlanError(f"what {name} would keep is not known: no quality floor can be kept")
        rows.append([count - each for each in kept])
        members += count
    return rows, members
