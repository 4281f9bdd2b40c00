"""The paper's dynamic programming (Algorithm 1), to reproduce it and to compare with it.

Costs are counted in whole budget units u, a table over units is filled class by class. It is
exact only if u divides every cost: otherwise rounding the costs up wastes budget, and rounding
them down or to the nearest overruns it. What a choice truly costs is always reported.
Paper: "Why Smaller Is Slower? Dimensional Misalignment in Compressed LLMs", arXiv 2604.09595,
section 4, with u = 8 · the least number of rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gacprof.core.errors import SolverError
from gacprof.solver.problem import Classes, InfeasibleBudget, Ints, read

TABLE_BYTES = 4 << 30
"""Larger tables of choices are refused: n classes × budget / unit, one or two bytes each."""

ROUNDINGS = ("down", "nearest", "up")


@dataclass(frozen=True)
class GacSolution:
    """A choice with its true value and cost. ``overrun`` is how far ``cost`` is over budget.

    ``exact``: the unit divides every cost and the budget, so that nothing was rounded.
    """

    choice: tuple[int, ...]
    value: float
    cost: int
    overrun: int
    unit: int
    exact: bool
    notes: tuple[str, ...] = ()


def solve_gac(
    costs: Any, values: Any, budget: int, unit: int, *, rounding: str = "down"
) -> GacSolution:
    """Most Σ values with Σ costs ≤ budget, both counted in units of ``unit``.

    ``rounding`` of each cost to units: ``"down"`` (integer division), ``"nearest"``, ``"up"``;
    the budget is always rounded down. Among equal values the earliest candidate of the latest
    class wins. Raises :class:`InfeasibleBudget` if nothing fits in units,
    :class:`SolverError` for bad input or too large a table.
    """
    if not isinstance(unit, (int, np.integer)) or isinstance(unit, bool) or unit < 1:
        raise SolverError(f"the budget unit must be a positive integer, not {unit!r}")
    if not isinstance(budget, (int, np.integer)) or isinstance(budget, bool):
        raise SolverError(f"the budget must be an integer, not {budget!r}")
    if rounding not in ROUNDINGS:
        raise SolverError(f"rounding is one of {', '.join(ROUNDINGS)}, not {rounding!r}")
    classes = read(costs, values)
    units = _units(classes.costs, int(unit), rounding)
    least = sum(np.minimum.reduceat(units, classes.starts).tolist())
    if least > int(budget) // int(unit):
        raise InfeasibleBudget(
            f"budget {budget} is too small: the least of every class takes {least} units "
            f"of {unit}, {least * int(unit)} in all",
            "budget",
            least * int(unit),
        )
    most = sum(np.maximum.reduceat(units, classes.starts).tolist())
    items = _table(classes, units, min(int(budget) // int(unit), most))
    cost = sum(classes.costs[items].tolist())
    overrun = max(0, cost - int(budget))
    exact = not int(budget) % int(unit) and not (classes.costs % int(unit)).any()
    notes = (f"rounding let it {overrun} over the budget",) if overrun else ()
    value = math.fsum(classes.values[items].tolist())
    return GacSolution(classes.choice(items), value, cost, overrun, int(unit), exact, notes)


def _units(costs: Ints, unit: int, rounding: str) -> Ints:
    if unit > np.iinfo(np.int64).max:
        raise SolverError("the budget unit is beyond 64 bits")
    whole, rest = np.divmod(costs, unit)
    if rounding == "up":
        return whole + (rest > 0)
    if rounding == "nearest":
        return whole + (rest >= unit - rest)
    return whole


def _table(classes: Classes, units: Ints, room: int) -> Ints:
    """best[b]: the most value of the classes so far within b units; then back through picks."""
    count, widest = len(classes.lengths), int(classes.lengths.max())
    kind: Any = np.uint8 if widest < 255 else np.uint16 if widest < 65535 else np.uint32
    needed = count * (room + 1) * np.dtype(kind).itemsize
    if needed > TABLE_BYTES:
        raise SolverError(
            f"the table takes {needed / 2**30:.1f} GiB: take a larger unit, or solve exactly"
        )
    picks: NDArray[Any] = np.empty((count, room + 1), dtype=kind)
    best = np.zeros(room + 1)
    for k in range(count):
        start = int(classes.starts[k])
        after = np.full(room + 1, -np.inf)
        for j in range(int(classes.lengths[k])):
            weight = int(units[start + j])
            if weight > room:
                continue
            total = best[: room + 1 - weight] + classes.values[start + j]
            better = total > after[weight:]
            np.copyto(after[weight:], total, where=better)
            np.copyto(picks[k, weight:], kind(j), where=better)
        best = after
    left, items = room, np.empty(count, dtype=np.int64)
    for k in reversed(range(count)):
        items[k] = classes.starts[k] + int(picks[k, left])
        left -= int(units[items[k]])
    return items
