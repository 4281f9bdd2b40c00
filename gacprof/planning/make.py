"""Making a plan: the choices there are, the best of them, and what it says of itself."""

from __future__ import annotations

import time
from pathlib import Path

from gacprof.checkpoint import inventory_for
from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.tensors import ModelReader
from gacprof.core.errors import PlanError
from gacprof.planning.classes import ROUNDING
from gacprof.planning.coupled import Kept
from gacprof.planning.evaluation import summary
from gacprof.planning.problem import problem_of
from gacprof.planning.request import PlanRequest
from gacprof.planning.schema import Plan
from gacprof.planning.solving import solve_classes
from gacprof.solver import InfeasibleBudget


def make_plan(request: PlanRequest, *, kept: Kept | None = None) -> Plan:
    """Choose one size for every adjustable dim.

    The request's time limit or Ctrl-C ends a search early with its best plan and the gap. ``kept``
    are the shares of energy kept where the original weights are at hand.

    Raises :class:`CheckpointError`, :class:`MapError`, :class:`PlanError`, or :class:`SolverError`
    naming the nearest feasible budget.
    """
    seconds = request.time_limit
    deadline = None if seconds is None else time.monotonic() + seconds
    source, reader = request.open_source(), None
    if isinstance(request.checkpoint, str | Path | Inventory):
        inventory = inventory_for(request.checkpoint)
    else:
        reader = ModelReader(request.checkpoint)
        inventory = reader.inventory
    problem = problem_of(inventory, source, request, reader=reader, kept=kept)
    limits = problem.limits(request.least_kept)
    classes = problem.classes(limits)
    outcome = solve_classes(problem, classes, limits, deadline=deadline, progress=request.progress)
    made = summary(problem, outcome, limits)
    _refuse_unmet(made, request)
    return made


def _refuse_unmet(made: Plan, request: PlanRequest) -> None:
    """Refuse where the best by the objective itself does not reach what was asked of it."""
    best = "the nearest" if made.certificate.proved else "the nearest found in the time"
    floor, kept = request.least_kept, made.energy_kept
    if floor is not None and made.objective == "energy":
        if kept is None:
            raise PlanError("what a pinned dim keeps is not known: no quality floor can be kept")
        if kept < floor - ROUNDING:
            refused = f"no plan within the limits keeps {floor:.4f} of the energy; {best} is "
            raise InfeasibleBudget(f"{refused}{int(kept * 1e4) / 1e4:.4f}", 0, kept)
    limit, after = request.latency_limit_us, made.predicted_after_us
    if limit is not None and made.objective == "latency":
        if after is None:
            raise PlanError("the plan's latency is not known: no latency limit can be kept")
        if after > limit * (1 + ROUNDING):
            refused = f"no plan within the limits takes {limit:.1f} µs; {best} takes "
            raise InfeasibleBudget(f"{refused}{after:.1f} µs", 0, after)
