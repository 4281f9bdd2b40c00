"""Multiple-choice knapsack: certified, and knowing nothing of models or GPUs.

>>> from gacprof.solver import solve
>>> found = solve([[0.0, 5.0, 6.0], [0.0, 4.0]], [([[1, 2, 4], [1, 3]], 5)])
>>> found.choice, found.value, found.takes, found.proved
((1, 1), 9.0, (5,), True)

With one resource the choice is exact (:mod:`gacprof.solver.one`); several are solved by HiGHS, with
its gap and a time limit (:mod:`gacprof.solver.several`). The same input gives the same choice, and
no class of it could take a candidate worth as much that takes less.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from numbers import Real
from typing import Any

from gacprof.core import Progress
from gacprof.core.errors import SolverError
from gacprof.solver.gac import GacSolution, solve_gac
from gacprof.solver.one import Caps, solve_one
from gacprof.solver.problem import InfeasibleBudget, Resource, Solution, read
from gacprof.solver.several import solve_several

WORK = 100_000_000
"""Default work cap with one resource, in states looked at: some ten seconds."""


def solve(
    values: Any,
    limits: Sequence[tuple[Any, float]] = (),
    *,
    work: int = WORK,
    seconds: float | None = None,
    progress: Progress | None = None,
) -> Solution:
    """Choose one candidate per class: most Σ values, within every limit.

    ``values`` is one sequence of doubles per class, or a 2-D array; ``limits`` are pairs: what
    every candidate takes of a resource (≥ 0, likewise; integers are added exactly, doubles by
    ``math.fsum``), and the most that a choice may take of it.

    Past ``work`` states or ``seconds``, or on ``KeyboardInterrupt``, the best choice so far is
    returned with its gap and ``proved`` false. ``progress(value, bound, what)`` is called now and
    then.

    Raises :class:`InfeasibleBudget` if nothing fits, :class:`SolverError` for bad input.
    """
    if seconds is not None and not (isinstance(seconds, Real) and seconds >= 0):
        raise SolverError(f"seconds must be a number from 0, not {seconds!r}")
    classes = read(values, limits)
    caps = Caps(work, None if seconds is None else time.monotonic() + seconds, progress)
    binding = tuple(each for each in classes.resources if not _never_binds(classes, each))
    if len(binding) > 1:
        return solve_several(classes, caps)
    one = (
        binding
        or classes.resources[:1]
        or (Resource("nothing", classes.values.astype(int) * 0, 0),)
    )
    try:
        found = solve_one(replace(classes, resources=one), caps)
    except InfeasibleBudget as error:
        place = classes.resources.index(one[0])
        raise InfeasibleBudget(str(error), place, error.nearest) from None
    items = classes.starts + found.choice
    return replace(found, takes=tuple(each.of(items) for each in classes.resources))


def _never_binds(classes: Any, each: Resource) -> bool:
    import numpy as np

    most = np.maximum.reduceat(each.takes, classes.starts).tolist()
    return bool(sum(most) <= each.most)


__all__ = ["GacSolution", "InfeasibleBudget", "Solution", "solve", "solve_gac"]
