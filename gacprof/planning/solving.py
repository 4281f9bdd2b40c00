"""From classes and an objective to the solver and back."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gacprof.core.errors import PlanError
from gacprof.diagnosing.predict import Predictor
from gacprof.planning.budgets import Ceiling
from gacprof.planning.classes import DimClass, Option
from gacprof.planning.objectives import Objective
from gacprof.planning.schema import Certificate
from gacprof.solver import InfeasibleBudget, solve


@dataclass(frozen=True)
class Outcome:
    """The chosen option by class name; None where a class had none and stays as it is."""

    chosen: Mapping[str, Option | None]
    certificate: Certificate
    members: Mapping[str, Sequence[str]]

    @property
    def sizes(self) -> dict[str, int | None]:
        """By dim name; None where the factors are multiplied out."""
        found: dict[str, int | None] = {}
        for name, option in self.chosen.items():
            if option is not None:
                size = None if option.fused else option.size
                found |= dict.fromkeys(self.members[name], size)
        return found


@dataclass(frozen=True)
class Limits:
    """What a plan must keep to, over all planned dims; None is no limit.

    ``latency_us`` is the workload's predicted time in the products of the planned weights, of
    which they take ``latency_now_us`` as they are; ``energy_kept`` is the least mean share of
    energy.
    """

    parameters: Ceiling | None = None
    memory: Ceiling | None = None
    latency_us: float | None = None
    latency_now_us: float | None = None
    energy_kept: float | None = None


@dataclass(frozen=True)
class Second:
    """The solver's second resource; ``refused`` says in the user's terms what would do."""

    name: str
    rows: list[list[float]]
    limit: float
    refused: Callable[[float], InfeasibleBudget]


def refuse_other_tokens(predictor: Predictor, offered: Mapping[str, Sequence[Option]]) -> None:
    """Raise :class:`PlanError` where nothing is on offer and the map knows other token counts."""
    if predictor.tokens_note and not any(offered.values()):
        raise PlanError(f"the map knows no safe size for any dim: {predictor.tokens_note}")


def solve_classes(
    goal: Objective,
    classes: Sequence[DimClass],
    offered: Mapping[str, Sequence[Option]],
    limits: Limits,
    *,
    time_limit: float | None = None,
    progress: Callable[[float, float], None] | None = None,
) -> Outcome:
    """Choose one offered option a class, within the limits.

    Among options of equal value only the cheapest is kept, so that nothing is padded further
    than the objective asks. Raises :class:`PlanError` where no class has an option, and
    :class:`InfeasibleBudget` naming the nearest budget or limit that can be met.
    """
    free = [group for group in classes if offered[group.name]]
    if not free:
        reason = next((group.missing for group in classes if group.missing), "")
        raise PlanError(
            "the map knows no safe size for any dim of this checkpoint; 'gacprof sweep --for "
            "CHECKPOINT' measures what a plan needs" + (f" ({reason})" if reason else "")
        )
    options = [_cheapest_of_equals(goal, group, offered[group.name], limits) for group in free]
    values = [
        [goal.value(g, option) for option in row] for g, row in zip(free, options, strict=True)
    ]
    stuck = [group.untouched for group in classes if not offered[group.name]]
    ceiling, costs, seconds = _budget(options, stuck, limits)
    seconds += _others(free, options, len(stuck), limits)
    if len(seconds) > 1:
        names = " and ".join(second.name for second in seconds)
        raise PlanError(f"the solver keeps to a budget and one more limit, not {names}: drop one")
    most = sum(max(row) for row in costs)
    room = most if ceiling is None else min(ceiling.most - _spent(ceiling, stuck), most)
    second: dict[str, Any] = {}
    if seconds:
        second = {"latency": seconds[0].rows, "limit": seconds[0].limit}
    try:
        solution = solve(costs, values, room, **second, seconds=time_limit, progress=progress)
    except InfeasibleBudget as error:
        if error.resource == "limit":
            raise seconds[0].refused(float(error.nearest)) from None
        assert ceiling is not None
        within = f" within the limit on {seconds[0].name}" if seconds else ""
        nearest = int(error.nearest) + _spent(ceiling, stuck)
        raise _refused(ceiling, nearest, within) from None
    chosen: dict[str, Option | None] = {group.name: None for group in classes}
    for group, row, j in zip(free, options, solution.choice, strict=True):
        chosen[group.name] = row[int(j)]
    certificate = Certificate(
        solver="exact multi-choice knapsack",
        measures=goal.measures,
        value=float(solution.value),
        bound=float(solution.bound),
        gap=float(solution.gap),
        proved=bool(solution.proved),
        interrupted=solution.interrupted,
        notes=list(solution.notes),
    )
    return Outcome(chosen, certificate, {g.name: [d.name for d in g.members] for g in classes})


def _budget(
    options: Sequence[Sequence[Option]], stuck: Sequence[Option], limits: Limits
) -> tuple[Ceiling | None, list[list[int]], list[Second]]:
    """The solver's first resource. Where all dtypes agree, bytes are parameters times a width,
    so that of two ceilings only the tighter one matters; else bytes are a resource of their own.
    """
    parameters = [[option.cost for option in row] for row in options]
    nbytes = [[option.nbytes for option in row] for row in options]
    tight, memory = limits.parameters, limits.memory
    if memory is None:
        return tight, parameters, []
    if tight is None:
        return memory, nbytes, []
    widths = {(o.nbytes // o.cost, o.nbytes % o.cost) for row in options for o in row if o.cost}
    if len(widths) == 1 and not (only := next(iter(widths)))[1]:
        in_bytes = (tight.most - _spent(tight, stuck)) * only[0]
        if in_bytes <= memory.most - _spent(memory, stuck):
            return tight, parameters, []
        return memory, nbytes, []
    rows = [[float(n) for n in row] for row in nbytes]  # exact: bytes are far below 2**53
    spent = _spent(memory, stuck)
    second = Second(
        "memory", rows, float(memory.most - spent),
        lambda nearest: _refused(memory, math.ceil(nearest) + spent, ""),
    )  # fmt: skip
    return tight, parameters, [second]


def _spent(ceiling: Ceiling, stuck: Sequence[Option]) -> int:
    """What the classes that stay as they are take of it."""
    return sum(o.nbytes if ceiling.unit == "bytes" else o.cost for o in stuck)


def _refused(ceiling: Ceiling, nearest: int, within: str) -> InfeasibleBudget:
    return InfeasibleBudget(
        f"no plan fits {ceiling.basis}{within}; the nearest budget that can be met is "
        f"{ceiling.as_given(nearest)}",
        "budget",
        nearest,
    )


def _others(
    free: Sequence[DimClass], options: Sequence[Sequence[Option]], stuck: int, limits: Limits
) -> list[Second]:
    """Predicted latency and energy lost, where they are limited."""
    seconds = []
    if limits.latency_us is not None:
        wanted = limits.latency_us
        saved = [_savings(group, row) for group, row in zip(free, options, strict=True)]
        most = [max(row) for row in saved]
        # What a choice does not save of the most that its class can. Classes that share a
        # product (a rank and a width) are added up as if the other did not change.
        shift = sum(most) - _now(limits)

        def too_slow(nearest: float) -> InfeasibleBudget:
            least = math.ceil((nearest - shift) * 10) / 10  # as said, it can be met
            told = f"no plan is within {wanted:.1f} µs; the nearest is {least:.1f} µs"
            return InfeasibleBudget(told, "limit", least)

        rows = [[m - s for s in row] for m, row in zip(most, saved, strict=True)]
        seconds.append(Second("latency", rows, wanted + shift, too_slow))
    if limits.energy_kept is not None:
        floor, members = limits.energy_kept, sum(len(group.members) for group in free) + stuck

        def too_lossy(nearest: float) -> InfeasibleBudget:
            kept = math.floor((1 - nearest / members) * 1e4) / 1e4
            told = f"no plan keeps {floor:.4f} of the energy; the nearest is {kept:.4f}"
            return InfeasibleBudget(told, "limit", kept)

        rows = [[_lost(g, o) for o in row] for g, row in zip(free, options, strict=True)]
        seconds.append(Second("energy", rows, (1 - floor) * members, too_lossy))
    return seconds


def _lost(group: DimClass, option: Option) -> float:
    if option.kept is None:
        raise PlanError(f"what {group.name} keeps at {option.size} is not known: no quality floor")
    return len(group.members) - option.kept


def _savings(group: DimClass, row: Sequence[Option]) -> list[float]:
    """Time that each option saves against the class as it is (µs, negative where slower)."""
    before = group.untouched.latency_us
    after = [option.latency_us for option in row]
    if before is None or any(t is None for t in after):
        raise PlanError(f"the latency of {group.name} is not known: no limit can be kept")
    return [before - t for t in after if t is not None]


def _now(limits: Limits) -> float:
    if limits.latency_now_us is None:
        raise PlanError("the map lacks some of the planned products: no latency limit can be kept")
    return limits.latency_now_us


def _cheapest_of_equals(
    goal: Objective, group: DimClass, offered: Sequence[Option], limits: Limits
) -> list[Option]:
    cheapest: dict[tuple[float, float | None, float | None], Option] = {}
    pinned = group.bounds.pin is not None
    for option in sorted(offered, key=lambda o: (o.cost, o.size)):
        if limits.energy_kept is not None and option.kept is None and not pinned:
            continue
        latency = option.latency_us if limits.latency_us is not None else None
        cheapest.setdefault((goal.value(group, option), option.kept, latency), option)
    if not cheapest:
        raise PlanError(f"what {group.name} would keep is not known: no quality floor can be kept")
    return sorted(cheapest.values(), key=lambda o: (o.fused, o.size))
