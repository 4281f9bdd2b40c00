"""What can be had: parameters, predicted latency and energy of many plans side by side.

Ours over a range of budgets, the paper's dynamic programming at today's budget, naive
rounding, and the checkpoint as it is; all judged by the same map and the same spectra.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from gacprof.checkpoint.inventory import Inventory
from gacprof.cliffmap import CliffMap
from gacprof.core.errors import PlanError
from gacprof.diagnosing.predict import Predictor
from gacprof.diagnosing.workload import Tokens
from gacprof.planning.budgets import Ceiling
from gacprof.planning.classes import DimClass, Option, build_classes
from gacprof.planning.constraints import Constraints
from gacprof.planning.grid import Grid, grid_of
from gacprof.planning.joint import solve_jointly
from gacprof.planning.judging import Judge, Variant
from gacprof.planning.objectives import Objective, check_scores, objective, offered
from gacprof.planning.rivals import naive, paper
from gacprof.planning.solving import Limits, Outcome, refuse_other_tokens
from gacprof.planning.spectra import energy_kept
from gacprof.solver import InfeasibleBudget

BUDGETS = 15
Progress = Callable[[int, int, object], None]


@dataclass(frozen=True)
class Pareto:
    """``grid`` holds exact cells over budgets and latency limits, where it was asked for."""

    checkpoint: str
    map: str
    device: str
    dtype: str
    objective: str
    tokens: dict[int, float]
    variants: tuple[Variant, ...]
    grid: Grid | None = None
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"schema": "gacprof.pareto/1"}


def pareto(
    inventory: Inventory,
    cliff_map: CliffMap,
    *,
    aim: str = "energy",
    tokens: Tokens | None = None,
    dtype: str | None = None,
    window: float = 0.25,
    budgets: int = BUDGETS,
    constraints: Constraints | None = None,
    scores: Mapping[str, float] | None = None,
    quality_floor: float | None = None,
    latency_limit_us: float | None = None,
    grid: int = 0,
    progress: Progress | None = None,
) -> Pareto:
    """All variants of one checkpoint on one map.

    Ours are ``budgets`` plans from the least that can be had to what never binds, and one at
    today's parameters; constraints and limits are theirs alone: rounding knows of none.
    ``grid`` asks for so many budgets by so many latency limits, each cell solved exactly.

    Raises :class:`PlanError`, or :class:`SolverError` where no budget leaves a plan.
    """
    if not inventory.dims:
        raise PlanError(f"{inventory.path} has no adjustable dims: there is nothing to choose")
    if budgets < 1 or grid < 0 or grid == 1:
        raise PlanError("ask for at least one budget, and for a grid of at least 2 by 2, or none")
    goal = objective(aim, scores)
    constraints = constraints or Constraints()
    predictor = Predictor(cliff_map, inventory, tokens, dtype)
    kept = energy_kept(inventory, inventory.dims)
    classes = build_classes(
        predictor, inventory.dims, window=window, constraints=constraints, kept=kept
    )
    check_scores(scores, [dim.name for dim in inventory.dims], classes)
    dims = [dim for group in classes for dim in group.members]
    judge = Judge(predictor, dims, kept)
    limits = Limits(
        latency_us=None if aim == "latency" else latency_limit_us,
        latency_now_us=predictor.weights({}).latency_us,
        energy_kept=None if aim == "energy" else quality_floor,
    )
    ours = _Ours(predictor, goal, classes, limits, constraints.untouched)
    refuse_other_tokens(predictor, ours.offers)
    variants = [judge.variant("as it is", {}), *naive(judge, dims)]
    variants += paper(judge, classes, inventory, scores)
    for outcome, today in ours.over(budgets, progress):
        proof = outcome.certificate
        method = f"gacprof {aim}" + (", today's budget" if today else "")
        made = judge.variant(method, outcome.sizes, "; ".join(proof.notes), proof.proved)
        if _meets(made, quality_floor, latency_limit_us):
            variants.append(made)
    if not any(v.method.startswith("gacprof") for v in variants):
        raise PlanError("no budget leaves a plan that meets the quality floor or latency limit")
    cells = grid_of(goal, classes, ours.offers, limits, judge, grid, progress) if grid else None
    return Pareto(
        inventory.path,
        cliff_map.name,
        cliff_map.environment.name,
        predictor.dtype,
        aim,
        predictor.tokens,
        tuple(variants),
        cells,
        (predictor.dtype_note,) if predictor.dtype_note else (),
    )


def _meets(made: Variant, floor: float | None, latency_limit_us: float | None) -> bool:
    lossy = floor is not None and (made.energy_kept is None or made.energy_kept < floor - 1e-12)
    slow = latency_limit_us is not None and (
        made.latency_us is None or made.latency_us > latency_limit_us * (1 + 1e-12)
    )
    return not lossy and not slow


@dataclass(frozen=True)
class _Ours:
    """The objective's choices from the tightest budget that can be met to one that never binds."""

    predictor: Predictor
    goal: Objective
    classes: Sequence[DimClass]
    limits: Limits
    untouched: bool

    @property
    def offers(self) -> dict[str, list[Option]]:
        return {g.name: offered(self.goal, g, self.untouched) for g in self.classes}

    def over(self, budgets: int, progress: Progress | None) -> Iterator[tuple[Outcome, bool]]:
        """Each different choice once, cheapest first, and whether it is that of today's size."""
        offers = self.offers
        rows = [[o.cost for o in offers[g.name]] or [g.before] for g in self.classes]
        least, most = sum(map(min, rows)), self._unbound(offers)
        today = sum(group.before for group in self.classes)
        steps = [least + (most - least) * k // max(1, budgets - 1) for k in range(budgets)]
        seen: set[tuple[int | None, ...]] = set()
        for number, room in enumerate(sorted({*steps, today})):
            if progress:
                progress(number, len(steps) + 1, "budget")
            limits = replace(self.limits, parameters=_ceiling(room))
            try:
                outcome = solve_jointly(self.goal, self.classes, offers, limits, self.predictor)
            except InfeasibleBudget:
                continue
            if outcome.certificate.interrupted:
                raise KeyboardInterrupt
            key = tuple(outcome.sizes.values())
            if key not in seen:
                seen.add(key)
                yield outcome, room == today

    def _unbound(self, offers: Mapping[str, Sequence[Option]]) -> int:
        """What the best costs where no budget binds: more would change nothing."""
        chosen = solve_jointly(self.goal, self.classes, offers, self.limits, self.predictor).chosen
        return sum((chosen[g.name] or g.untouched).cost for g in self.classes)


def _ceiling(room: int) -> Ceiling:
    told = "{:,} parameters in the planned dims".format
    return Ceiling(room, "parameters", told(room), told)
