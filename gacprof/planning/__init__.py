"""Inventory + cliff map + budget → one chosen size per dim."""

from __future__ import annotations

from gacprof.core.request import verb
from gacprof.planning.request import WINDOW, Constraints, ParetoRequest, PlanRequest
from gacprof.planning.schema import Plan


def _plan(request: PlanRequest) -> Plan:
    """Choose a size for every adjustable dim of a checkpoint or of a model in memory.

    Raises :class:`CheckpointError`, :class:`MapError`, :class:`PlanError` or
    :class:`SolverError`.
    """
    from gacprof.planning.solving import make_plan

    return make_plan(request)


plan = verb("plan", PlanRequest, _plan)

__all__ = ["WINDOW", "Constraints", "ParetoRequest", "Plan", "PlanRequest", "plan"]
