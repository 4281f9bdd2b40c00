"""Budgets as users give them, and as the solver counts them: over the planned dims."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gacprof.checkpoint.inventory import Dim, Inventory
from gacprof.core.errors import PlanError
from gacprof.planning.classes import DimClass
from gacprof.planning.memory import footprint, planned


@dataclass(frozen=True)
class Ceiling:
    """The most that the planned dims may cost, summed over them, and how it was arrived at.

    ``unit`` is ``parameters`` or ``bytes``. ``as_given`` says such a sum in the terms that
    the user set the ceiling in. ``shared`` is what the sum counts more than once as the
    checkpoint is, for weights that several dims are written in.
    """

    most: int
    unit: str
    basis: str
    as_given: Callable[[int], str]
    shared: int = 0

    @property
    def limit(self) -> int:
        """The most that the planned weights may hold, each counted once."""
        return self.most - self.shared

    def lowered(self, by: int) -> Ceiling:
        return replace(self, most=self.most - by)


def parameter_ceiling(
    inventory: Inventory,
    classes: Sequence[DimClass],
    budget: float | None,
    budget_parameters: int | None,
) -> Ceiling | None:
    """Raises :class:`PlanError` for a budget that is none, or that the rest alone exceeds."""
    if budget is not None and budget_parameters is not None:
        raise PlanError("give either a budget fraction or a number of parameters, not both")
    now = footprint(inventory, {}).parameters
    weights = planned(inventory, members(classes)).parameters
    shared, rest = sum(group.before for group in classes) - weights, now - weights
    if budget_parameters is not None:
        if budget_parameters <= 0:
            raise PlanError(f"the budget of {budget_parameters:,} parameters must be positive")
        if budget_parameters <= rest:
            raise PlanError(
                f"{budget_parameters:,} parameters are fewer than the {rest:,} that no plan can "
                f"change; as it is the checkpoint has {now:,}"
            )
        return Ceiling(
            budget_parameters - rest + shared,
            "parameters",
            f"{budget_parameters:,} parameters in all; it has {now:,}",
            lambda cost: f"{cost - shared + rest:,} parameters in all",
            shared,
        )
    if budget is not None:
        if not 0 < budget < float("inf"):
            raise PlanError(f"the budget {budget} is no positive fraction of the dense size")
        dense = dense_parameters(inventory)
        return Ceiling(
            int(min(budget * dense, 2.0**100)) + shared,
            "parameters",
            f"{budget:g} of {dense:,} dense parameters",
            lambda cost: f"{math.ceil((cost - shared) / dense * 1e4) / 1e4:g} of the dense size",
            shared,
        )
    return None


def memory_ceiling(
    inventory: Inventory, classes: Sequence[DimClass], memory: int | None
) -> Ceiling | None:
    """``memory`` is bytes of all weights as stored. Raises :class:`PlanError` as above."""
    if memory is None:
        return None
    if memory <= 0:
        raise PlanError(f"the memory of {memory:,} bytes must be positive")
    now = footprint(inventory, {}).nbytes
    weights = planned(inventory, members(classes)).nbytes
    shared, rest = sum(group.untouched.nbytes for group in classes) - weights, now - weights
    if memory <= rest:
        raise PlanError(
            f"{human_bytes(memory)} of memory are less than the {human_bytes(rest)} that no plan "
            f"can change; as it is the checkpoint's weights take {human_bytes(now)}"
        )
    return Ceiling(
        memory - rest + shared,
        "bytes",
        f"{human_bytes(memory)} of weights in all; it has {human_bytes(now)}",
        lambda cost: f"{human_bytes(cost - shared + rest, up=True)} of weights in all",
        shared,
    )


def members(classes: Sequence[DimClass]) -> list[Dim]:
    """All dims that are planned."""
    return [dim for group in classes for dim in group.members]


def human_bytes(count: int, up: bool = False) -> str:
    """``6.13 MB``, decimal, as ``--memory`` reads it back; ``up`` never says less than there is."""
    for size, unit in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if count >= size:
            hundredths = -(-count * 1000 // size) if up else round(count * 1000 / size)
            return f"{hundredths / 1000:.7g} {unit}"
    return f"{count} B"


def dense_parameters(inventory: Inventory) -> int:
    """Parameters of the planned weights were they dense: in × out for a factored weight.

    Each weight counts once, whatever dims it is written in. The width of a pruned layer is
    counted as it is.
    """
    dims = [dim for dim in inventory.dims if dim.adjustable]
    ranks = {dim.name for dim in dims if dim.kind == "rank"}
    factored = [module for module in inventory.modules if ranks & set(module.dims)]
    factors = {gemm.weight for module in factored for gemm in module.gemms}
    dense = sum(module.in_features * module.out_features for module in factored)
    return dense + planned(inventory, dims, without=factors).parameters
