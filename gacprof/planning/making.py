"""Making a plan: the request on one checkpoint and one source, its choices, the best of them."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from pathlib import Path

from gacprof.checkpoint import inventory_for
from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.scanning import ModelReader
from gacprof.core.errors import PlanError
from gacprof.core.request import verb
from gacprof.planning.classes import build_classes
from gacprof.planning.evaluation import summary
from gacprof.planning.limits import PlanLimits, limits_of
from gacprof.planning.problem import PLAIN, Compression, problem_of
from gacprof.planning.request import PlanRequest
from gacprof.planning.schema import Plan
from gacprof.planning.solving import resources, solve_within
from gacprof.solver import InfeasibleBudget


def _plan(request: PlanRequest) -> Plan:
    """Choose a size for every adjustable dim of a checkpoint or of a model in memory.

    Raises :class:`CheckpointError`, :class:`MapError`, :class:`PlanError` or
    :class:`SolverError`.
    """
    return make_plan(request)


plan = verb("plan", PlanRequest, _plan)


def make_plan(request: PlanRequest, compression: Compression = PLAIN) -> Plan:
    """The plan of a checkpoint, or of what a compressor is about to write.

    The request's time limit or Ctrl-C ends a search early with its best plan and the gap. Raises as
    :func:`plan`: :class:`SolverError` names the nearest feasible budget.
    """
    seconds = request.time_limit
    deadline = None if seconds is None else time.monotonic() + seconds
    source, reader = request.open_source(), None
    if isinstance(request.checkpoint, str | Path | Inventory):
        inventory = inventory_for(request.checkpoint)
    else:
        reader = ModelReader(request.checkpoint)
        inventory = reader.inventory
    problem = problem_of(inventory, source, request, compression, reader=reader)
    try:
        outcome, limits = solve_within(
            problem, partial(build_classes, problem), limits_of(problem),
            deadline=deadline, progress=request.progress,
        )  # fmt: skip
    except InfeasibleBudget as error:
        if not problem.predictor.noisy:
            raise
        said = f"{error}, since no size may change: {problem.predictor.too_noisy}"
        raise InfeasibleBudget(said, error.resource, error.nearest, enough=error.enough) from None
    return summary(problem, outcome, limits)


def refuse_unreachable(request: PlanRequest, compression: Compression = PLAIN) -> None:
    """Raise :class:`InfeasibleBudget` for a limit on time that no sizes on offer meet, whatever
    they lose, and :class:`PlanError` for one that is relative to what is not known. Sizes alone are
    looked at, no weights: it is known before any long work."""
    inventory = inventory_for(request.checkpoint)
    everything = {d.name: [1.0] * ((d.most or d.size) + 1) for d in inventory.dims}
    asked = replace(request, objective="energy", scores=None, quality_floor=None)
    known = replace(compression, kept=everything)
    problem = problem_of(inventory, request.open_source(), asked, known)
    limits = PlanLimits(times=limits_of(problem).times)
    try:
        classes = build_classes(problem, limits)
        taken = resources(problem, classes, limits)
    except PlanError:  # of sizes that another plan may not offer
        return
    for each in taken:
        if each.least > each.limit.most:
            raise each.limit.refused(each.least, alone=True)
