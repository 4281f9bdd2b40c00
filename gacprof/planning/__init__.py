"""Inventory + cliff map + budget → one chosen size per dim."""

from __future__ import annotations

from gacprof.planning.making import plan
from gacprof.planning.request import WINDOW, Constraints, ParetoRequest, PlanRequest
from gacprof.planning.schema import Plan

__all__ = ["WINDOW", "Constraints", "ParetoRequest", "Plan", "PlanRequest", "plan"]
