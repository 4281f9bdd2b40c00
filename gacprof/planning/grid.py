"""The best that can be had in so many parameters and so much time: exact cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gacprof.core.errors import PlanError
from gacprof.planning.classes import DimClass, Option
from gacprof.planning.judging import Judge, Variant
from gacprof.planning.objectives import Objective
from gacprof.planning.solving import Limits
from gacprof.solver import Solution, pareto


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


def grid_of(
    goal: Objective,
    classes: Sequence[DimClass],
    offers: Mapping[str, Sequence[Option]],
    limits: Limits,
    judge: Judge,
    size: int,
    progress: Callable[[int, int, object], None] | None = None,
) -> Grid:
    """``size`` budgets by ``size`` latency limits. Raises :class:`PlanError` where latencies are
    not known."""
    rows = [(g, [o for o in offers[g.name] if o.latency_us is not None]) for g in classes]
    free = [(group, options) for group, options in rows if options]
    now = limits.latency_now_us
    if not free or now is None or any(g.untouched.latency_us is None for g, _ in free):
        raise PlanError("the map lacks some of the planned products: no grid over latency")
    shift = now - sum(group.untouched.latency_us or 0.0 for group, _ in free)
    rest = judge.variant("", {}).parameters - sum(group.before for group, _ in free)
    told = 0

    def tell(value: float, bound: float) -> None:
        if progress:
            progress(told, size * size, "cell")

    found = pareto(
        [[o.cost for o in options] for _, options in free],
        [[goal.value(g, o) for o in options] for g, options in free],
        [[o.latency_us for o in options] for _, options in free],
        budgets=size,
        limits=size,
        progress=tell,
    )
    cells = []
    for line in found.cells:
        cells.append(tuple(_cell(goal, free, judge, solution) for solution in line))
        told += size
    return Grid(
        tuple(budget + rest for budget in found.budgets),
        tuple(limit + shift for limit in found.limits),
        tuple(cells),
    )


def _cell(
    goal: Objective,
    free: Sequence[tuple[DimClass, Sequence[Option]]],
    judge: Judge,
    solution: Solution | None,
) -> Variant | None:
    if solution is None:
        return None
    sizes: dict[str, int | None] = {}
    for (group, options), j in zip(free, solution.choice, strict=True):
        option = options[int(j)]
        sizes |= {dim.name: None if option.fused else option.size for dim in group.members}
    return judge.variant(goal.name, sizes, proved=solution.proved)
