"""What can be had: parameters, predicted latency and energy of many plans side by side.

Ours over a range of budgets, and the baselines: the paper's dynamic programming at today's
budget, naive rounding, and the checkpoint as it is; all evaluated by the same map and spectra.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

from gacprof.checkpoint.inventory import Inventory
from gacprof.cliffmap.source import SizeSource
from gacprof.core import Progress
from gacprof.core.errors import PlanError
from gacprof.core.files import Record
from gacprof.core.formatting import Framed
from gacprof.core.points import MAX_DIM
from gacprof.planning.classes import DimClass, Option
from gacprof.planning.evaluation import Evaluator, Variant
from gacprof.planning.memory import Ceiling
from gacprof.planning.objectives import Gac
from gacprof.planning.problem import Limits, Problem, pose
from gacprof.planning.request import PlanRequest
from gacprof.planning.solving import ROUNDING, Outcome, sizes_of, solve_jointly
from gacprof.solver import InfeasibleBudget, Solution, solve_gac
from gacprof.solver import pareto as solve_grid

BUDGETS = 15
MULTIPLES = (8, 64)
PAPER = "paper's DP, today's budget"


@dataclass(frozen=True)
class Grid:
    """``cells[i][j]`` is the best within ``parameters[i]`` and ``latency_us[j]``, None where
    there is none.

    Both lines are over the whole checkpoint and the planned products as the solver counts
    them, dim by dim; a cell tells what it takes with all its dims resized together.
    """

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


def pareto(
    inventory: Inventory,
    source: SizeSource,
    request: PlanRequest,
    *,
    budgets: int = BUDGETS,
    grid: int = 0,
    progress: Progress | None = None,
) -> Pareto:
    """All variants of one checkpoint on one map.

    Ours are ``budgets`` plans from the least that can be had to what never binds, and one at
    today's parameters; constraints and limits are theirs alone: rounding knows of none.
    ``grid`` asks for so many budgets by so many latency limits, each cell solved exactly.

    Raises :class:`PlanError`, or :class:`SolverError` where no budget leaves a plan.
    """
    if budgets < 1 or grid < 0 or grid == 1:
        raise PlanError("ask for at least one budget, and for a grid of at least 2 by 2, or none")
    if request.has_budget:
        raise PlanError("a pareto goes over budgets of its own: give none")
    if not source.timed:
        raise PlanError(
            f"'{source.name}' is {source.basis} and knows no latency, so there is no front: "
            "'gacprof plan' makes a plan for one budget"
        )
    problem = pose(inventory, source, request, all_spectra=True)
    predictor, classes = problem.predictor, problem.classes()
    limits = problem.limits(request.quality_floor)
    evaluator = Evaluator(problem)
    variants = [evaluator.variant("as it is", {}), *_rounded(evaluator)]
    variants += _papers(problem, classes, evaluator)
    ours = []
    for outcome, today in _ours(problem, classes, limits, budgets, progress):
        proof = outcome.certificate
        method = f"gacprof {request.objective}" + (", today's budget" if today else "")
        made = evaluator.variant(method, outcome.sizes, "; ".join(proof.notes), proof.proved)
        if _meets(made, request):
            ours.append(made)
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
        _grid(problem, classes, limits, evaluator, grid, progress) if grid else None,
        tuple(predictor.view.notes),
    )


def _meets(made: Variant, request: PlanRequest) -> bool:
    floor, limit = request.quality_floor, request.latency_limit_us
    kept, time_us = made.energy_kept, made.latency_us
    lossy = floor is not None and (kept is None or kept < floor - ROUNDING)
    slow = limit is not None and (time_us is None or time_us > limit * (1 + ROUNDING))
    return not lossy and not slow


def _ours(
    problem: Problem,
    classes: Sequence[DimClass],
    limits: Limits,
    budgets: int,
    progress: Progress | None,
) -> Iterator[tuple[Outcome, bool]]:
    """The objective's choices from the tightest budget that can be met to one that never binds:
    each different choice once, cheapest first, and whether it is that of today's size."""
    unbound = solve_jointly(problem, classes, limits)
    least = sum(min((o.cost for o in g.candidates), default=g.before) for g in classes)
    most = sum((option or group.untouched).cost for group, option in unbound.pairs)
    today = sum(group.before for group in classes)
    steps = [least + (most - least) * k // max(1, budgets - 1) for k in range(budgets)]
    seen: set[tuple[int | None, ...]] = set()
    for number, room in enumerate(sorted({*steps, today})):
        if progress:
            progress(number, len(steps) + 1, "budget")
        within = replace(limits, parameters=_ceiling(room))
        try:
            outcome = solve_jointly(problem, classes, within)
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


def _papers(
    problem: Problem, classes: Sequence[DimClass], evaluator: Evaluator
) -> Iterator[Variant]:
    """Algorithm 1 of arXiv 2604.09595: Eq. 4 by dynamic programming in units of 8·M_min, M_min
    the fewest rows of a weight. A cut whose loss is not known (of a width) is not offered to it,
    so that its choice can be evaluated."""
    goal = Gac(problem.request.scores)
    rows = [(g, [o for o in goal.eligible(g) if o.kept is not None]) for g in classes]
    free = [(group, options) for group, options in rows if options]
    if not free:
        return
    planned = {dim.name for group, _ in free for dim in group.members}
    modules = problem.inventory.modules
    solution = solve_gac(
        [[option.cost for option in options] for _, options in free],
        [[goal.value(group, option) for option in options] for group, options in free],
        sum(group.before for group, _ in free),
        8 * min(m.out_features for m in modules if planned & set(m.dims)),
    )
    over = solution.overrun
    note = f"{over:,} parameters over its own budget" if over else ""
    yield evaluator.variant(PAPER, _picked(free, solution.choice), note)


def _picked(
    free: Sequence[tuple[DimClass, Sequence[Option]]], choice: Sequence[int]
) -> dict[str, int | None]:
    pairs = zip(free, choice, strict=True)
    return sizes_of((group, options[j]) for (group, options), j in pairs)


def _grid(
    problem: Problem,
    classes: Sequence[DimClass],
    limits: Limits,
    evaluator: Evaluator,
    size: int,
    progress: Progress | None,
) -> Grid:
    """``size`` budgets by ``size`` latency limits. Raises :class:`PlanError` where latencies are
    not known."""
    rows = [(g, [o for o in g.candidates if o.latency_us is not None]) for g in classes]
    free = [(group, options) for group, options in rows if options]
    now, goal = limits.latency_now_us, problem.goal
    if not free or now is None or any(g.untouched.latency_us is None for g, _ in free):
        raise PlanError("the map lacks some of the planned products: no grid over latency")
    shift = now - sum(group.untouched.latency_us or 0.0 for group, _ in free)
    rest = evaluator.variant("", {}).parameters - sum(group.before for group, _ in free)
    found = solve_grid(
        [[o.cost for o in options] for _, options in free],
        [[goal.value(g, o) for o in options] for g, options in free],
        [[o.latency_us for o in options] for _, options in free],
        budgets=size,
        limits=size,
        progress=lambda *_: progress(0, size * size, "cell") if progress else None,
    )

    def cell(solution: Solution | None) -> Variant | None:
        if solution is None:
            return None
        sizes = _picked(free, solution.choice)
        return evaluator.variant(goal.name, sizes, proved=solution.proved)

    return Grid(
        tuple(budget + rest for budget in found.budgets),
        tuple(limit + shift for limit in found.limits),
        tuple(tuple(cell(solution) for solution in line) for line in found.cells),
    )
