"""Which sizes the final factors or widths get: planned on the compressed model before it exists.

A compressed model's inventory follows from its sizes alone. So the planner is given the model that
the method would write by itself, the spectra of the *original* weights, and the parameters that the
ratio allows; it moves every size to one that the map knows to be served well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gacprof.checkpoint.inventory import Inventory
from gacprof.compressing.request import CompressRequest
from gacprof.core.errors import CompressionError, PlanError
from gacprof.diagnosing.predict import Predictor
from gacprof.planning import Constraints, Plan, PlanRequest
from gacprof.planning.make import make_plan

if TYPE_CHECKING:
    from gacprof.cliffmap import CliffMap


def only(inventory: Inventory, names: Sequence[str]) -> Inventory:
    """The inventory with these dims alone; what a method does not change is no dim of its."""
    wanted = set(names)
    modules = tuple(
        replace(module, dims=tuple(name for name in module.dims if name in wanted))
        for module in inventory.modules
    )
    dims = tuple(dim for dim in inventory.dims if dim.name in wanted)
    return replace(inventory, dims=dims, modules=modules)


def weighted(
    kept: Mapping[str, Sequence[float]], weights: Mapping[str, float] | None, names: Sequence[str]
) -> Mapping[str, Sequence[float]]:
    """The shares kept, a lost one counting by its dim's weight, 1 for the heaviest of ``names``."""
    most = max((weights[name] for name in names), default=0.0) if weights else 0.0
    if weights is None or not most > 0:
        return kept
    return {
        name: [1 - weights[name] / most * (1 - share) for share in kept[name]] for name in names
    }


def choose(
    inventory: Inventory,
    cliff_map: CliffMap,
    request: CompressRequest,
    *,
    budget_parameters: int,
    kept: Mapping[str, Sequence[float]],
    most: Mapping[str, int],
    scores: Mapping[str, float] | None,
    fuse: bool = True,
) -> Plan:
    """A safe size for every dim, within the budget, or within the request's limit on latency too.

    ``inventory`` is that of the model as the method would write it; ``fuse`` says whether a dense
    weight may take the place of a factor pair. Raises
    :class:`CompressionError` where the map cannot align all of them, :class:`SolverError` where
    nothing fits.
    """
    asked = PlanRequest(
        objective=request.objective,
        budget_parameters=budget_parameters,
        tokens=request.tokens,
        window=request.window,
        latency_limit_us=request.latency_limit_us,
        scores=scores,
        constraints=Constraints(
            most={d.name: most[d.name] for d in inventory.dims}, fuse=fuse, preset=request.preset
        ),
    )
    try:
        plan = make_plan(inventory, cliff_map, asked, kept=kept)
    except PlanError as error:
        if NOTHING_KNOWN not in str(error):
            raise
        raise CompressionError(
            f"the map '{cliff_map.name}' knows no safe size for any of {len(inventory.dims)} dims: "
            f"{_why(cliff_map, inventory, Predictor(cliff_map, inventory, request.tokens).tokens)}"
        ) from None
    unknown = [choice for choice in plan.choices if choice.safe is None]
    if unknown:
        first = inventory.dim(unknown[0].dim)
        raise CompressionError(
            f"the map '{plan.map}' knows no safe size for {len(unknown)} of {len(plan.choices)} "
            f"dims, the first is {first.name}, wanted at {first.size}: "
            f"{_why(cliff_map, inventory, plan.workload.tokens)}"
        )
    return plan


def _why(cliff_map: CliffMap, inventory: Inventory, counts: Iterable[int]) -> str:
    """Why there is no safe size, or how to measure some."""
    if cliff_map.too_noisy:
        return f"it is too noisy to judge by ({cliff_map.too_noisy})"
    return how_to_measure(inventory, counts)


NOTHING_KNOWN = "the map knows no safe size for any dim"
"""How the planner says so; it cannot name a checkpoint that does not exist yet."""


def how_to_measure(inventory: Inventory, counts: Iterable[int]) -> str:
    """The sweep that fills the map for these sizes at these token counts."""
    sizes = [dim.size for dim in inventory.dims]
    tokens = ",".join(str(count) for count in counts)
    if all(dim.kind == "rank" for dim in inventory.dims):
        low, high = max(1, min(sizes) * 3 // 4), max(sizes) * 5 // 4
        return (
            f"measure them with 'gacprof sweep --ranks DENSE --range {low}:{high} --tokens "
            f"{tokens} --out runs/ranks', or widen --window"
        )
    return (
        "compress without --map first, and measure what comes out with 'gacprof sweep --for OUT "
        f"--tokens {tokens} --out runs/own'"
    )
