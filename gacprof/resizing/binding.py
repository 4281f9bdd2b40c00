"""Whether a plan is one for this checkpoint, and still says what it said when it was made.

A plan is a file that people edit. Its sizes may be changed by hand; but where it still carries
the account of what it costs (``budget.checkpoint_after``), sizes and account have to agree.
"""

from __future__ import annotations

from gacprof.checkpoint.inventory import Dim, Inventory
from gacprof.core.errors import PlanError
from gacprof.planning.memory import footprint
from gacprof.planning.schema import Choice, Plan

AGAIN = (
    "the plan was edited: plan again (--pin holds a size), or set checkpoint_before and "
    "checkpoint_after of its budget to null, which leaves its account out"
)


def check_plan(plan: Plan, inventory: Inventory) -> None:
    """Raise :class:`PlanError` unless the plan was made for this checkpoint and adds up."""
    if plan.fingerprint != inventory.fingerprint:
        raise PlanError(
            f"the plan was made for another checkpoint ({plan.checkpoint}, fingerprint "
            f"{plan.fingerprint[:12]}); {inventory.path} has {inventory.fingerprint[:12]}"
        )
    check_sizes(plan, inventory)
    if plan.budget.checkpoint_after is not None:
        _check_account(plan, inventory)


def check_sizes(plan: Plan, inventory: Inventory) -> None:
    """Raise :class:`PlanError` for a choice that is not one of a dim as it is here."""
    if not plan.choices:
        raise PlanError(f"the plan for {plan.checkpoint} has no choices: plan again")
    dims = {dim.name: dim for dim in inventory.dims}
    for choice in plan.choices:
        dim = dims.get(choice.dim)
        if dim is None:
            raise PlanError(
                f"the plan for {plan.checkpoint} does not fit the {inventory.path}: it has no dim "
                f"'{choice.dim}'"
            )
        _check_choice(plan, choice, dim, inventory)


def _check_choice(plan: Plan, choice: Choice, dim: Dim, inventory: Inventory) -> None:
    for what, told, here in (("", choice.before, dim.size), ("a ", choice.kind, dim.kind)):
        if told != here:
            raise PlanError(
                f"the plan for {plan.checkpoint} does not fit the {inventory.path}: it says that "
                f"'{dim.name}' is {what}{told}, here it is {what}{here}"
            )
    if dim.most is not None and choice.after and choice.after > dim.most:
        raise PlanError(
            f"the plan gives '{dim.name}' the rank {choice.after}: the dense weight's rank is "
            f"{dim.dense_size}"
        )


def _check_account(plan: Plan, inventory: Inventory) -> None:
    for choice in plan.choices:
        after, cost = choice.after, inventory.dim(choice.dim).params_per_unit
        if after is not None and choice.cost != after * cost:
            raise PlanError(
                f"the plan gives '{choice.dim}' the size {after} at {choice.cost:,} parameters, "
                f"it takes {after * cost:,}; {AGAIN}"
            )
        if after != choice.before and after is not None and after not in choice.candidates:
            raise PlanError(
                f"the plan gives '{choice.dim}' the size {after}, which was not on offer; {AGAIN}"
            )
    then = footprint(inventory, plan.changes)
    for what, told, here in (
        ("parameters", plan.budget.checkpoint_after, then.parameters),
        ("bytes of weights", plan.memory and plan.memory.after, then.nbytes),
    ):
        if told is not None and told != here:
            raise PlanError(f"the plan says {told:,} {what}, its sizes give {here:,}; {AGAIN}")
