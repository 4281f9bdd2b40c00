"""Limits kept by all dims together, though the solver counts them one by one.

Dims that share a weight (a gate's rank and its layer's width) have a product that no sum of
their own costs gives: two paddings cost more than both alone. So what the solver chose is
counted anew with all of it applied, and where that breaks a limit, the solver is given less by
as much as its own count was short.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gacprof.core.errors import PlanError
from gacprof.diagnosing.predict import Predictor
from gacprof.planning.budgets import Ceiling
from gacprof.planning.classes import DimClass, Option
from gacprof.planning.memory import footprint
from gacprof.planning.objectives import Objective
from gacprof.planning.solving import Limits, Outcome, solve_classes
from gacprof.solver import InfeasibleBudget

ROUNDS = 12
"""Each round takes away what the last count was short by; two or three do in practice."""

ROUNDING = 1e-12
"""Sums of doubles in another order differ by less than this share."""


def solve_jointly(
    goal: Objective,
    classes: Sequence[DimClass],
    offered: Mapping[str, Sequence[Option]],
    limits: Limits,
    predictor: Predictor,
    *,
    time_limit: float | None = None,
    progress: Callable[[float, float], None] | None = None,
) -> Outcome:
    """:func:`solve_classes`, its limits kept with all dims resized together.

    Raises what that raises, and :class:`InfeasibleBudget` where no plan was found that keeps
    them together, naming the nearest that was; :class:`PlanError` where the map does not hold
    the products that would tell.
    """
    given, over = limits, ""
    deadline = None if time_limit is None else time.monotonic() + time_limit
    for _ in range(ROUNDS):
        left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
        try:
            outcome = solve_classes(
                goal, classes, offered, given, time_limit=left, progress=progress
            )
        except InfeasibleBudget as error:
            if not over:
                raise
            raise InfeasibleBudget(over, error.resource, error.nearest) from None
        tighter, over = _tightened(limits, given, outcome, classes, predictor)
        if not over:
            return outcome if given == limits else _noted(outcome)
        if outcome.certificate.interrupted:
            break
        given = tighter
    raise InfeasibleBudget(over, "limit", float("nan"))


def _tightened(
    limits: Limits,
    given: Limits,
    outcome: Outcome,
    classes: Sequence[DimClass],
    predictor: Predictor,
) -> tuple[Limits, str]:
    """The limits for another round, and what this one broke (empty: nothing)."""
    sizes, inventory = outcome.sizes, predictor.inventory
    now, then = footprint(inventory, {}), footprint(inventory, sizes)
    told, changed = [], dict[str, Any]()
    apart = [(g.untouched, outcome.chosen[g.name] or g.untouched) for g in classes]
    for name, before, more, counted in (
        (
            "parameters",
            sum(a.cost for a, _ in apart),
            then.parameters - now.parameters,
            sum(b.cost for _, b in apart),
        ),
        (
            "memory",
            sum(a.nbytes for a, _ in apart),
            then.nbytes - now.nbytes,
            sum(b.nbytes for _, b in apart),
        ),
    ):
        ceiling: Ceiling | None = getattr(limits, name)
        if ceiling is not None and before + more > ceiling.most:
            changed[name] = ceiling.lowered(before + more - counted)
            told.append(f"fits {ceiling.basis}: the nearest has {ceiling.as_given(before + more)}")
    if limits.latency_us is not None and given.latency_us is not None:
        after = predictor.weights(sizes)
        if after.latency_us is None:
            raise PlanError(
                "the limit cannot be kept for certain: the map does not hold the planned sizes "
                "together; pin what shares a product with others (--pin '*:width=keep'), or "
                f"sweep it: {after.missing}"
            )
        if after.latency_us > limits.latency_us * (1 + ROUNDING):
            saved = sum((a.latency_us or 0.0) - (b.latency_us or 0.0) for a, b in apart)
            counted_us = (limits.latency_now_us or 0.0) - saved
            changed["latency_us"] = limits.latency_us - (after.latency_us - counted_us)
            told.append(
                f"is within {limits.latency_us:.1f} µs: the nearest takes {after.latency_us:.1f} µs"
            )
    if not told:
        return given, ""
    joined = " and ".join(told)
    return replace(given, **changed), f"no plan was found that {joined}, with all dims resized"


def _noted(outcome: Outcome) -> Outcome:
    proof = outcome.certificate
    note = (
        "dims that share a weight are counted one by one, and together they broke a limit: the "
        "proof is for a limit tightened by what they broke it by"
    )
    return replace(outcome, certificate=proof.model_copy(update={"notes": [*proof.notes, note]}))
