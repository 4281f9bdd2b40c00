"""Inventory + cliff map + budget → one chosen size per dim.

Each file rests on those before it: ``request``, ``presets`` (engines, as they are named),
``requirements`` (what they demand of dims), ``axes`` (dims that share a size), ``costs``,
``objectives``, ``problem`` (all that is known before a choice), ``limits``, ``offers`` (the sizes
of an axis), ``classes`` (joint sizes of coupled dims),
``solving``, ``schema`` (the plan), ``evaluation``, ``making``.
"""

from __future__ import annotations

from gacprof.planning.making import plan
from gacprof.planning.request import WINDOW, Constraints, ParetoRequest, PlanRequest
from gacprof.planning.schema import Plan

__all__ = ["WINDOW", "Constraints", "ParetoRequest", "Plan", "PlanRequest", "plan"]
