"""The paper's dynamic programming (Algorithm 1), to reproduce it and to compare with it.

Costs are counted in whole budget units u, rounded down, and a table over units is filled class by
class. It is exact only if u divides every cost: otherwise rounding overruns the budget. What a
choice truly costs is always reported.
Paper: "Why Smaller Is Slower? Dimensional Misalignment in Compressed LLMs", arXiv 2604.09595,
section 4, with u = 8 · the least number of rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from gacprof.core.errors import SolverError
from gacprof.solver.problem import Classes, InfeasibleBudget, Ints, read

TABLE_BYTES = 4 << 30
"""Larger tables of choices are refused: n classes × budget / unit, one or two bytes each."""


@dataclass(frozen=True)
class GacSolution:
    """A choice with its true value and cost. ``overrun`` is how far ``cost`` is over budget."""

    choice: tuple[int, ...]
    value: float
    cost: int
    overrun: int


def solve_gac(costs: Any, values: Any, budget: int, unit: int) -> GacSolution:
    """Most Σ values with Σ costs ≤ budget, both counted in whole units of ``unit``.

    Among equal values the earliest candidate of the latest class wins. Raises
    :class:`InfeasibleBudget` if nothing fits in units, :class:`SolverError` for bad input or too
    large a table.
    """
    for name, number, least in (("budget", budget, -math.inf), ("budget unit", unit, 1)):
        if not isinstance(number, (int, np.integer)) or isinstance(number, bool) or number < least:
            kind = "a positive integer" if least == 1 else "an integer"
            raise SolverError(f"the {name} must be {kind}, not {number!r}")
    budget, unit = int(budget), int(unit)
    if unit > np.iinfo(np.int64).max:
        raise SolverError("the budget unit is beyond 64 bits")
    classes = read(values, [(costs, budget)])
    resource = classes.resources[0]
    if not resource.whole:
        raise SolverError("costs must be integers")
    units = resource.takes.astype(np.int64) // unit
    least = sum(np.minimum.reduceat(units, classes.starts).tolist())
    if least > budget // unit:
        raise InfeasibleBudget(
            f"budget {budget} is too small: the least of every class takes {least} units "
            f"of {unit}, {least * unit} in all",
            0,
            least * unit,
        )
    most = sum(np.maximum.reduceat(units, classes.starts).tolist())
    items = _table(classes, units, min(budget // unit, most))
    cost = int(resource.of(items))
    choice = tuple((items - classes.starts).tolist())
    return GacSolution(choice, classes.value(items), cost, max(0, cost - budget))


def _table(classes: Classes, units: Ints, room: int) -> Ints:
    """best[b]: the most value of the classes so far within b units; then back through picks."""
    count, widest = len(classes.lengths), int(classes.lengths.max())
    kind: Any = np.uint8 if widest < 255 else np.uint16 if widest < 65535 else np.uint32
    needed = count * (room + 1) * np.dtype(kind).itemsize
    if needed > TABLE_BYTES:
        raise SolverError(
            f"the table takes {needed / 2**30:.1f} GiB: take a larger unit, or solve exactly"
        )
    picks = np.empty((count, room + 1), dtype=kind)
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
