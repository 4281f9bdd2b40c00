"""``solve``: the best choice within a budget, and the proof that it is. ``pareto``: such choices
over a grid of budgets and latency limits."""

from __future__ import annotations

import math
import numbers
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gacprof.core import Progress
from gacprof.core.errors import SolverError
from gacprof.solver.branch import Caps, Incumbent, optimise
from gacprof.solver.problem import (
    Classes,
    InfeasibleBudget,
    Ints,
    Resource,
    Solution,
    cost_resource,
    latency_resource,
    read,
    root_problem,
)

WORK = 100_000_000
"""Default work cap, in states looked at: some ten seconds."""

HUGE = 2.0**200
"""Beyond any sum of costs."""

COARSE, FINE = 44, 60
"""Latencies are rounded down to so many bits of their sum at first, so that nearly equal choices
become equal, and to so many if the choice found fits only by rounding."""


def solve(
    costs: Any,
    values: Any,
    budget: float,
    latency: Any = None,
    limit: float | None = None,
    *,
    work: int = WORK,
    seconds: float | None = None,
    progress: Progress | None = None,
) -> Solution:
    """Choose one candidate per class: most Σ values, Σ costs ≤ budget, Σ latency ≤ limit.

    ``costs`` are integers ≥ 0, ``values`` and ``latency`` (≥ 0) doubles: one sequence per
    class, or 2-D arrays. A choice fits if its exact cost is at most ``budget`` and its
    correctly rounded latency (``math.fsum``) at most ``limit``.

    Past ``work`` states, ``seconds``, or on ``KeyboardInterrupt``, the best choice so far is
    returned with its gap and ``proved`` false. ``progress(value, bound, what)`` is called
    now and then. Ties: see the package's docstring.

    Raises :class:`InfeasibleBudget` if nothing fits, :class:`SolverError` for bad input.
    """
    if (latency is None) != (limit is None):
        raise SolverError("latency and limit go together: give both or neither")
    whole = isinstance(budget, numbers.Integral)
    room = budget if whole else math.floor(min(max(_real("budget", budget), -HUGE), HUGE))
    ceiling = None if limit is None else _real("limit", limit)
    deadline = None if seconds is None else time.monotonic() + _real("seconds", seconds)
    caps = Caps(work, deadline, progress)
    return solve_classes(read(costs, values, latency), int(room), ceiling, caps)


def solve_classes(classes: Classes, budget: int, limit: float | None, caps: Caps) -> Solution:
    """:func:`solve` on input that has been read."""
    cost = cost_resource(classes, budget)
    if limit is None:
        return _solution(classes, budget, [cost], caps)
    bound = math.inf
    for bits, reserve in ((COARSE, 0), (FINE, 0), (FINE, len(classes.lengths))):
        times = latency_resource(classes, limit, bits, reserve)
        found = _solution(classes, budget, [cost, times], caps)
        if reserve:  # what rounding may have let through was left out: only that bound holds
            return replace(found, bound=bound, proved=found.value == bound)
        bound = found.bound
        if found.latency is not None and found.latency <= limit:
            break
    return found


def _solution(classes: Classes, budget: int, resources: list[Resource], caps: Caps) -> Solution:
    # Values near the ends of a double's range are scaled by a power of two.
    exponent = math.frexp(float(np.abs(classes.values).max()))[1]
    shift = exponent if abs(exponent) > 300 else 0
    root = root_problem(np.ldexp(classes.values, -shift), resources, classes)
    if root is None:
        _least_cost(classes, budget, resources, caps)
        raise AssertionError("a class without candidates that fit, yet a choice that does")
    incumbent, interrupted = Incumbent(root, caps), False
    try:
        optimise(incumbent, lambda: _least_cost(classes, budget, resources, caps))
    except TimeoutError:
        incumbent.note("the time limit was reached: the gap is what is left unproved")
    except KeyboardInterrupt:
        if not incumbent.settle_for_less():
            raise
        interrupted = True
        incumbent.note("interrupted: the gap is what is left unproved")
    if not incumbent.settle_for_less():
        raise SolverError("the time was over before any choice that fits was found: allow more")
    assert incumbent.choice is not None
    items = _first_of_ties(classes, incumbent.choice)
    value = math.fsum(classes.values[items].tolist())
    return Solution(
        choice=classes.choice(items),
        value=value,
        cost=sum(classes.costs[items].tolist()),
        bound=max(value, math.ldexp(incumbent.bound, shift)),
        proved=incumbent.complete,
        latency=None if classes.latency is None else math.fsum(classes.latency[items].tolist()),
        notes=tuple(incumbent.notes),
        interrupted=interrupted,
    )


def _real(name: str, number: Any) -> float:
    if not isinstance(number, numbers.Real) or math.isnan(number):
        raise SolverError(f"{name} must be a number, not {number!r}")
    return float(number)


def _least_cost(classes: Classes, budget: int, resources: list[Resource], caps: Caps) -> Ints:
    """The cheapest choice within the limit; :class:`InfeasibleBudget` if it is not cheap enough."""
    cost, latency = resources
    root = root_problem(-cost.weight.astype(np.float64), [latency], classes)
    if root is None:
        raise SolverError("the limit is too near the least latency to be told apart: raise it")
    incumbent = Incumbent(root, caps)
    optimise(incumbent)
    items = incumbent.choice
    assert items is not None  # the least latency of each class fits
    if int(cost.weight[items].sum()) <= cost.room:
        return items
    if not incumbent.complete:
        raise SolverError("no choice that fits was found within the work cap: allow more work")
    least = sum(classes.costs[items].tolist())
    raise InfeasibleBudget(
        f"budget {budget} is {least - budget} short: within the latency limit the least cost "
        f"is {least}",
        "budget",
        least,
    )


@dataclass(frozen=True)
class Grid:
    """``cells[i][j]`` is the best choice within budgets[i] and limits[j], None if there is none."""

    budgets: tuple[int, ...]
    limits: tuple[float, ...]
    cells: tuple[tuple[Solution | None, ...], ...]


def pareto(
    costs: Any,
    values: Any,
    latency: Any,
    *,
    budgets: Sequence[int] | int = 8,
    limits: Sequence[float] | int = 8,
    progress: Progress | None = None,
) -> Grid:
    """The best choice for each of some budgets and latency limits, each solved exactly.

    ``budgets`` and ``limits`` are the grid's lines, or how many to lay evenly between the least
    possible and what the most valuable choice takes. ``KeyboardInterrupt`` passes through: half a
    grid is none.
    """
    classes = read(costs, values, latency)
    assert classes.latency is not None
    top = solve_classes(classes, math.floor(HUGE), math.inf, Caps(WORK))
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


def _first_of_ties(classes: Classes, items: Ints) -> Ints:
    """Each class at its first candidate of the best value that costs and takes no more."""
    fits = classes.costs <= np.repeat(classes.costs[items], classes.lengths)
    if classes.latency is not None:
        fits &= classes.latency <= np.repeat(classes.latency[items], classes.lengths)
    value = np.where(fits, classes.values, -np.inf)
    best = np.maximum.reduceat(value, classes.starts)
    tied = np.flatnonzero(value == np.repeat(best, classes.lengths))
    owner = classes.owner[tied]
    keys: list[Any] = [] if classes.latency is None else [classes.latency[tied]]
    tied = tied[np.lexsort([*keys, classes.costs[tied], owner])]
    return tied[np.searchsorted(owner, np.arange(len(items)))]
