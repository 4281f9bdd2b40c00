"""``pareto``: what value can be had at what cost.

One resource: the supported frontier, that is every choice that is best for some price of a
unit of cost. It is the upper hulls of all classes, their steps sorted by value per cost.
Two resources: a grid of cells, each solved exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np

from gacprof.core import Progress
from gacprof.core.errors import SolverError
from gacprof.solver.branch import Caps
from gacprof.solver.exact import WORK, solve_classes
from gacprof.solver.problem import Classes, Floats, InfeasibleBudget, Ints, Solution, read


@dataclass(frozen=True, eq=False)
class Frontier:
    """Points of rising cost and value; between neighbours one class changes its candidate.

    ``costs`` and ``values`` have one entry per point. Step k leads from point k to k + 1: class
    ``steps[k]`` takes its candidate ``takes[k]``, at a value per cost that never rises.
    """

    costs: Ints
    values: Floats
    steps: Ints
    takes: Ints
    first: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.costs)

    def choice(self, point: int) -> tuple[int, ...]:
        """The candidates of a point, one per class."""
        point = range(len(self))[point]
        choice = np.array(self.first)
        choice[self.steps[:point]] = self.takes[:point]  # later steps of a class win
        return tuple(choice.tolist())


@dataclass(frozen=True)
class Grid:
    """``cells[i][j]`` is the best choice within budgets[i] and limits[j], None if there is none."""

    budgets: tuple[int, ...]
    limits: tuple[float, ...]
    cells: tuple[tuple[Solution | None, ...], ...]


@overload
def pareto(costs: Any, values: Any) -> Frontier: ...


@overload
def pareto(
    costs: Any,
    values: Any,
    latency: Any,
    *,
    budgets: Sequence[int] | int = 8,
    limits: Sequence[float] | int = 8,
    progress: Progress | None = None,
) -> Grid: ...


def pareto(
    costs: Any,
    values: Any,
    latency: Any = None,
    *,
    budgets: Sequence[int] | int = 8,
    limits: Sequence[float] | int = 8,
    progress: Progress | None = None,
) -> Frontier | Grid:
    """The supported frontier; with ``latency``, a grid over budgets and latency limits.

    ``budgets`` and ``limits`` are the grid's lines, or how many to lay evenly between the least
    possible and what the most valuable choice takes. ``KeyboardInterrupt`` passes through: half a
    grid is none.
    """
    classes = read(costs, values, latency)
    if classes.latency is None:
        return _frontier(classes)
    top = solve_classes(classes, 1 << 200, math.inf, Caps(WORK))
    least = sum(np.minimum.reduceat(classes.costs, classes.starts).tolist())
    fastest = math.fsum(np.minimum.reduceat(classes.latency, classes.starts).tolist())
    rows = [int(b) for b in _lines("budgets", budgets, least, top.cost)]
    columns = [float(t) for t in _lines("limits", limits, fastest, top.latency)]

    def cell(budget: int, limit: float) -> Solution | None:
        try:
            solution = solve_classes(classes, budget, limit, Caps(WORK, progress=progress))
        except InfeasibleBudget:
            return None
        if solution.interrupted:
            raise KeyboardInterrupt
        return solution

    cells = tuple(tuple(cell(row, column) for column in columns) for row in rows)
    return Grid(tuple(rows), tuple(columns), cells)


def _lines(name: str, asked: Sequence[Any] | int, low: Any, high: Any) -> Sequence[Any]:
    if not isinstance(asked, (int, np.integer)):
        if not len(asked):
            raise SolverError(f"a grid needs {name}: give some, or how many to lay")
        return asked
    if asked < 2:
        raise SolverError(f"a grid needs at least two {name}")
    if isinstance(low, int):  # where there are fewer whole numbers than asked for, each once
        return sorted({low + (high - low) * k // (asked - 1) for k in range(asked)})
    return [*(low + (high - low) * (k / (asked - 1)) for k in range(asked - 1)), high]


def _frontier(classes: Classes) -> Frontier:
    if sum(np.maximum.reduceat(classes.costs, classes.starts).tolist()) >= 2**62:
        raise SolverError("the costs are beyond 64 bits: count in a larger unit")
    hull = _hulls(classes)
    owner, cost, value = classes.owner[hull], classes.costs[hull], classes.values[hull]
    heads = np.append(True, owner[1:] != owner[:-1])
    step = np.flatnonzero(~heads)
    rise, run = value[step] - value[step - 1], cost[step] - cost[step - 1]
    order = step[np.argsort(-(rise / run), kind="stable")]
    columns = hull - classes.starts[owner]
    costs = np.cumsum(np.append(cost[heads].sum(), cost[order] - cost[order - 1]))
    gains = (value[order] - value[order - 1]).astype(np.longdouble)
    values = np.cumsum(np.append(np.longdouble(math.fsum(value[heads].tolist())), gains))
    return Frontier(
        costs,
        values.astype(np.float64),
        owner[order].astype(np.int64),
        columns[order],
        tuple(columns[heads].tolist()),
    )


def _hulls(classes: Classes) -> Ints:
    """Items on the upper left hull of their class, cheapest first, class after class."""
    items = np.arange(len(classes.costs))
    rising = (np.diff(classes.costs) > 0) | (np.diff(classes.owner) > 0)
    if not rising.all():
        items = np.lexsort((-classes.values, classes.costs, classes.owner))
    while True:
        o, v, c = classes.owner[items], classes.values[items], classes.costs[items]
        same = o[1:] == o[:-1]
        with np.errstate(divide="ignore", invalid="ignore"):
            slope = np.where(same, (v[1:] - v[:-1]) / (c[1:] - c[:-1]), 0.0)
        drop = np.zeros(len(items), dtype=bool)
        drop[1:] = same & (v[1:] <= v[:-1])  # worth no more than a cheaper one
        if not drop.any():  # on or below the line between its neighbours
            drop[1:-1] = same[:-1] & same[1:] & (slope[:-1] <= slope[1:])
        if not drop.any():
            return items
        items = items[~drop]
