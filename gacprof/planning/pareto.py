"""What can be had: parameters, predicted latency and energy of many plans side by side.

Ours over a range of budgets, and the baselines: the paper's dynamic programming at today's
budget, naive rounding, and the checkpoint as it is; all evaluated by the same map and spectra.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

from gacprof.checkpoint import inventory_for
from gacprof.core import Progress
from gacprof.core.errors import PlanError
from gacprof.core.files import Record
from gacprof.core.formatting import Framed
from gacprof.core.points import MAX_DIM
from gacprof.core.request import verb
from gacprof.planning.classes import DimClass
from gacprof.planning.evaluation import Evaluator, Variant
from gacprof.planning.limits import Ceiling, Limits, TimeLimit
from gacprof.planning.objectives import objective
from gacprof.planning.problem import Problem, problem_of
from gacprof.planning.request import ParetoRequest
from gacprof.planning.solving import Outcome, solve_classes
from gacprof.solver import InfeasibleBudget, solve_gac

MULTIPLES = (8, 64)
PAPER = "paper's DP, today's budget"


@dataclass(frozen=True)
class Grid:
    """``cells[i][j]`` is the best within ``parameters[i]`` of the whole checkpoint and
    ``latency_us[j]`` of the planned products, None where there is none."""

    parameters: tuple[int, ...]
    latency_us: tuple[float, ...]
    cells: tuple[tuple[Variant | None, ...], ...]


@dataclass(frozen=True)
class Pareto(Record, Framed):
    """``grid`` holds exact cells over budgets and latency limits, where it was asked for."""

    schema: ClassVar = "gacprof.pareto/1"
    derived: ClassVar = ("schema",)

    checkpoint: str
    map: str
    device: str
    dtype: str
    objective: str
    tokens: dict[int, float]
    variants: tuple[Variant, ...]
    grid: Grid | None = None
    notes: tuple[str, ...] = ()

    def frame_rows(self) -> Iterator[dict[str, Any]]:
        return (asdict(variant) for variant in self.variants)

    def frame_title(self) -> str:
        return f"{self.checkpoint} on {self.device}, objective {self.objective}"


def _pareto(request: ParetoRequest) -> Pareto:
    """Plans over many budgets beside naive rounding and the paper's choice, all of one checkpoint
    on one map.

    Ours are ``budgets`` plans from the least that can be had to what never binds, and one at
    today's parameters; constraints and limits are theirs alone: rounding knows of none.

    Raises :class:`CheckpointError`, :class:`MapError`, :class:`PlanError`, or
    :class:`SolverError` where no budget leaves a plan.
    """
    inventory, source, progress = (
        inventory_for(request.checkpoint), request.open_source(), request.progress
    )  # fmt: skip
    if not source.timed:
        raise PlanError(
            f"'{source.name}' is {source.basis} and knows no latency, so there is no front: "
            "'gacprof plan' makes a plan for one budget"
        )
    problem = problem_of(inventory, source, request, all_spectra=True)
    predictor, limits = problem.predictor, replace(problem.limits(), break_even=False)
    classes = problem.classes(replace(limits, parameters=_ceiling(0)))
    evaluator = Evaluator(problem)
    variants = [evaluator.variant("as it is", {}), *_rounded(evaluator)]
    variants += _papers(problem, evaluator)
    ours = []
    for outcome, today in _ours(problem, classes, limits, request.budgets, progress):
        proof = outcome.certificate
        method = f"gacprof {request.objective}" + (", today's budget" if today else "")
        ours.append(evaluator.variant(method, outcome.sizes, "; ".join(proof.notes), proof.proved))
    if not ours:
        raise PlanError("no budget leaves a plan that meets the quality floor or latency limit")
    return Pareto(
        inventory.path,
        source.name,
        source.environment.name,
        predictor.dtype,
        request.objective,
        predictor.tokens,
        (*variants, *ours),
        _grid(problem, limits, evaluator, request.grid, progress) if request.grid else None,
        tuple(predictor.view.notes),
    )


pareto = verb("pareto", ParetoRequest, _pareto)


def _ours(
    problem: Problem,
    classes: Sequence[DimClass],
    limits: Limits,
    budgets: int,
    progress: Progress | None,
) -> Iterator[tuple[Outcome, bool]]:
    """The objective's choices from the tightest budget that can be met to one that never binds:
    each different choice once, cheapest first, and whether it is that of today's size."""
    try:
        unbound = solve_classes(problem, classes, limits)
    except InfeasibleBudget:
        return
    least = sum(min(option.cost for option in group.options) for group in classes)
    most = sum(option.cost for option in unbound.chosen)
    today = sum(group.untouched.cost for group in classes)
    steps = [least + (most - least) * k // max(1, budgets - 1) for k in range(budgets)]
    seen: set[tuple[int | None, ...]] = set()
    for number, room in enumerate(sorted({*steps, today})):
        if progress:
            progress(number, len(steps) + 1, "budget")
        within = replace(limits, parameters=_ceiling(room))
        try:
            outcome = solve_classes(problem, classes, within)
        except InfeasibleBudget:
            continue
        if outcome.certificate.interrupted:
            raise KeyboardInterrupt
        key = tuple(outcome.sizes.values())
        if key not in seen:
            seen.add(key)
            yield outcome, room == today


def _ceiling(room: int) -> Ceiling:
    amount = "{:,} parameters in the planned dims".format
    return Ceiling(room, "parameters", amount(room), amount)


def _rounded(evaluator: Evaluator) -> Iterator[Variant]:
    """What the compressors' own flags do: every dim to a multiple, up, down or to the nearest.

    A rank is raised to no more than is of use (:attr:`Dim.most`).
    """
    for multiple in MULTIPLES:
        for way, rounded in (
            ("up", lambda d, m: -(-d // m) * m),
            ("down", lambda d, m: max(m, d // m * m)),
            ("nearest", lambda d, m: max(m, (d + m // 2) // m * m)),
        ):
            sizes = {
                dim.name: min(rounded(dim.size, multiple), dim.most or MAX_DIM)
                for dim in evaluator.dims
                if dim.padding == "exact"
            }
            yield evaluator.variant(f"{way} to {multiple}", sizes)


def _papers(problem: Problem, evaluator: Evaluator) -> Iterator[Variant]:
    """Algorithm 1 of arXiv 2604.09595: Eq. 4 by dynamic programming in units of 8·M_min, M_min
    the fewest rows of a weight. A cut whose loss is not known (of a width) is not offered to it,
    so that its choice can be evaluated."""
    goal = objective("gac", problem.request.scores)
    try:
        classes = replace(problem, goal=goal).classes(Limits(parameters=_ceiling(0)))
    except PlanError:
        return
    options = [[option for option in g.options if option.kept is not None] for g in classes]
    free = [(g, row) for g, row in zip(classes, options, strict=True) if row]
    if not free:
        return
    written = {dim.name for group, _ in free for dim in group.members}
    rows = [m.out_features for m in problem.inventory.modules if written & set(m.dims)]
    today = sum(group.untouched.cost for group, _ in free)
    try:
        solution = solve_gac(
            [[option.cost for option in row] for _, row in free],
            [[option.value for option in row] for _, row in free],
            today,
            8 * min(rows),
        )
    except InfeasibleBudget:
        return
    pairs = zip(free, solution.choice, strict=True)
    sizes = {name: s for (g, row), j in pairs for name, s in g.sizes(row[j]).items()}
    note = f"{solution.overrun:,} parameters over its own budget" if solution.overrun else ""
    yield evaluator.variant(PAPER, sizes, note)


def _grid(
    problem: Problem, limits: Limits, evaluator: Evaluator, size: int, progress: Progress | None
) -> Grid:
    """``size`` budgets by ``size`` latency limits. Raises :class:`PlanError` where latencies are
    not known."""
    slow = TimeLimit(problem.predictor, math.inf, str)
    limits = replace(limits, parameters=_ceiling(0), times=(*limits.times, slow))
    classes = problem.classes(limits)
    best = solve_classes(problem, classes, replace(limits, parameters=None)).chosen
    times = [[o.latency_us for o in g.options if o.latency_us is not None] for g in classes]
    if any(len(row) < len(g.options) for row, g in zip(times, classes, strict=True)):
        raise PlanError("the map lacks some of the planned products: no grid over latency")
    least = sum(min(option.cost for option in group.options) for group in classes)
    most = sum(option.cost for option in best)
    budgets = sorted({least + (most - least) * k // (size - 1) for k in range(size)})
    fastest = sum(min(row) for row in times)
    slowest = sum(option.latency_us or 0.0 for option in best)
    steps = (k / (size - 1) for k in range(size - 1))
    ceilings = [*(fastest + (slowest - fastest) * step for step in steps), slowest]
    rest = evaluator.variant("", {}).parameters - sum(g.untouched.cost for g in classes)

    def cell(budget: int, most: float) -> Variant | None:
        if progress:
            progress(0, size * size, "cell")
        fast = (*limits.times[:-1], replace(slow, most_us=most))
        within = replace(limits, parameters=_ceiling(budget), times=fast)
        try:
            outcome = solve_classes(problem, classes, within)
        except InfeasibleBudget:
            return None
        proof = outcome.certificate
        if proof.interrupted:
            raise KeyboardInterrupt
        return evaluator.variant(problem.goal.name, outcome.sizes, proved=proof.proved)

    return Grid(
        tuple(budget + rest for budget in budgets),
        tuple(ceilings),
        tuple(tuple(cell(budget, most) for most in ceilings) for budget in budgets),
    )
