"""Making a plan: classes, objective, solver, and an account of what it will do."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.tensors import TensorReader
from gacprof.cliffmap import CliffMap
from gacprof.core.errors import PlanError
from gacprof.diagnosing.companions import Sizes
from gacprof.diagnosing.predict import Predictor
from gacprof.diagnosing.workload import Tokens
from gacprof.planning.account import Made, account
from gacprof.planning.budgets import dense_parameters, memory_ceiling, parameter_ceiling
from gacprof.planning.classes import build_classes, pinned_sizes
from gacprof.planning.constraints import Constraints, check_numbers
from gacprof.planning.joint import solve_jointly
from gacprof.planning.objectives import check_scores, objective, offered
from gacprof.planning.rounds import Decided, decide_together
from gacprof.planning.schema import Plan
from gacprof.planning.solving import Limits, Outcome, refuse_other_tokens
from gacprof.planning.spectra import energy_kept
from gacprof.solver import InfeasibleBudget

__all__ = ["WINDOW", "dense_parameters", "make_plan"]

WINDOW = 0.25


def make_plan(
    inventory: Inventory,
    cliff_map: CliffMap,
    *,
    aim: str = "energy",
    budget: float | None = None,
    budget_parameters: int | None = None,
    memory: int | None = None,
    tokens: Tokens | None = None,
    dtype: str | None = None,
    window: float = WINDOW,
    constraints: Constraints | None = None,
    scores: Mapping[str, float] | None = None,
    quality_floor: float | None = None,
    latency_limit_us: float | None = None,
    time_limit: float | None = None,
    progress: Callable[[float, float], None] | None = None,
    reader: TensorReader | None = None,
) -> Plan:
    """Choose one size for every adjustable dim of ``inventory``.

    ``budget`` is a fraction of the dense size of the planned weights, ``budget_parameters``
    a count for the whole checkpoint, ``memory`` the bytes of all its weights as stored; all
    that are given hold. With none, memory is not limited, and nothing is lost unless a limit
    on time asks for it. ``quality_floor`` is the least mean share of energy kept,
    ``latency_limit_us`` the most time that the workload may take in the planned weights'
    products, all of them resized together. ``time_limit`` (seconds) or Ctrl-C ends a search
    early with its best plan and the gap; ``progress(value, bound)`` is called as it goes on.
    ``reader`` reads the tensors where they are not on disk.

    Raises :class:`PlanError`, or :class:`SolverError` naming the nearest feasible budget.
    """
    check_numbers(
        budget=budget,
        budget_parameters=budget_parameters,
        memory=memory,
        quality_floor=quality_floor,
        latency_limit_us=latency_limit_us,
        time_limit=time_limit,
    )
    if not inventory.dims:
        raise PlanError(f"{inventory.path} has no adjustable dims: there is nothing to plan")
    _check(quality_floor, latency_limit_us, time_limit)
    constraints = constraints or Constraints()
    goal = objective(aim, scores)
    floor, notes = quality_floor, list[str]()
    if aim == "latency" and floor is None and (budget, budget_parameters, memory) == (None,) * 3:
        floor = 1.0
        notes.append("no quality floor was given: nothing is cut (--quality-floor allows cuts)")
    if budget is not None and budget > 1:
        meant = f": was {budget / 100:g} meant?" if 2 <= budget <= 100 else ""
        notes.append(f"the budget {budget:g} is above 1, the size of the dense weights{meant}")
    predictor = Predictor(cliff_map, inventory, tokens, dtype)
    needs_spectra = aim in ("energy", "latency") or floor is not None
    kept = energy_kept(inventory, inventory.dims, reader) if needs_spectra else {}

    def decide(sizes: Sizes, seconds: float | None) -> Decided:
        classes = build_classes(
            predictor,
            inventory.dims,
            window=window,
            constraints=constraints,
            kept=kept,
            sizes=sizes,
        )
        check_scores(scores, [dim.name for dim in inventory.dims], classes)
        # What an objective itself makes the most of need not be a resource beside the budget: the
        # best there is meets the limit, or nothing does.
        limits = Limits(
            parameter_ceiling(inventory, classes, budget, budget_parameters),
            memory_ceiling(inventory, classes, memory),
            latency_us=None if aim == "latency" else latency_limit_us,
            latency_now_us=predictor.weights({}).latency_us,
            energy_kept=None if aim == "energy" else floor,
        )
        offers = {group.name: offered(goal, group, constraints.untouched) for group in classes}
        refuse_other_tokens(predictor, offers)
        outcome = solve_jointly(
            goal, classes, offers, limits, predictor, time_limit=seconds, progress=progress
        )
        return Decided(classes, offers, limits, outcome)

    found = decide_together(
        predictor, decide, pinned_sizes(inventory.dims, constraints), time_limit
    )
    outcome = found.outcome
    made = account(
        Made(inventory, predictor, goal, found.classes, found.offered, outcome, found.limits, kept),
        notes,
    )
    _keep_to(made, outcome, floor, latency_limit_us)
    return made


def _check(
    quality_floor: float | None, latency_limit_us: float | None, time_limit: float | None
) -> None:
    if quality_floor is not None and not 0 <= quality_floor <= 1:
        raise PlanError(f"the quality floor is {quality_floor}: it must be a share from 0 to 1")
    if latency_limit_us is not None and not 0 < latency_limit_us < float("inf"):
        raise PlanError(f"the latency limit is {latency_limit_us} µs: it must be positive")
    if time_limit is not None and not time_limit > 0:
        raise PlanError(f"the time limit is {time_limit} s: it must be positive")


def _keep_to(
    made: Plan, outcome: Outcome, floor: float | None, latency_limit_us: float | None
) -> None:
    """Refuse where the best by the objective itself does not reach what was asked of it."""
    best = "the nearest" if outcome.certificate.proved else "the nearest found in the time"
    kept, after = made.energy_kept, made.predicted_after_us
    if floor is not None and made.objective == "energy":
        if kept is None:
            raise PlanError("what a pinned dim keeps is not known: no quality floor can be kept")
        if kept < floor - 1e-12:
            told = f"no plan within the limits keeps {floor:.4f} of the energy; {best} is "
            raise InfeasibleBudget(f"{told}{int(kept * 1e4) / 1e4:.4f}", "limit", kept)
    if latency_limit_us is not None and made.objective == "latency":
        if after is None:
            raise PlanError("the plan's latency is not known: no latency limit can be kept")
        if after > latency_limit_us * (1 + 1e-12):
            told = f"no plan within the limits takes {latency_limit_us:.1f} µs; {best} takes "
            raise InfeasibleBudget(f"{told}{after:.1f} µs", "limit", after)
