"""From a problem's classes to the solver and back, its limits kept by all dims together.

The solver counts dims one by one, but dims that share a weight (a gate's rank and its layer's
width) have a product that no sum of their own costs gives: two paddings cost more than both
alone. So what the solver chose is counted anew with all of it applied, and where that breaks a
limit, the solver is given less by as much as its own count was short.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gacprof.core import Progress
from gacprof.core.errors import PlanError
from gacprof.planning.classes import DimClass, Option
from gacprof.planning.memory import Ceiling, footprint
from gacprof.planning.objectives import Objective
from gacprof.planning.problem import Limits, Problem
from gacprof.planning.schema import Certificate
from gacprof.solver import InfeasibleBudget, solve

REPETITIONS = 12
"""Each takes away what the last count was short by; two or three do in practice."""

ROUNDING = 1e-12
"""Sums of doubles in another order differ by less than this share."""


TIGHTENED = (
    "dims that share a weight are counted one by one, and together they broke a limit: the "
    "proof is for a limit tightened by what they broke it by"
)


@dataclass(frozen=True)
class Outcome:
    """The chosen option of each class; None where a class had none and stays as it is."""

    classes: Sequence[DimClass]
    chosen: Sequence[Option | None]
    certificate: Certificate

    @property
    def pairs(self) -> list[tuple[DimClass, Option | None]]:
        return list(zip(self.classes, self.chosen, strict=True))

    @property
    def sizes(self) -> dict[str, int | None]:
        return sizes_of((group, option) for group, option in self.pairs if option is not None)

    def noted(self, *notes: str, proved: bool = True) -> Outcome:
        """The same with more notes on its proof, which no longer counts unless ``proved``."""
        proof = self.certificate
        changes = {"notes": [*proof.notes, *notes], "proved": proof.proved and proved}
        return replace(self, certificate=proof.model_copy(update=changes))


def sizes_of(pairs: Iterable[tuple[DimClass, Option]]) -> dict[str, int | None]:
    """The chosen sizes by dim name; None where the factors are multiplied out."""
    return {
        dim.name: None if option.fused else option.size
        for group, option in pairs
        for dim in group.members
    }


def solve_jointly(
    problem: Problem,
    classes: Sequence[DimClass],
    limits: Limits,
    *,
    deadline: float | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Choose one candidate a class, the limits kept with all dims resized together.

    ``deadline`` is on the monotonic clock; ``progress`` hears the best value so far and its bound.
    Raises :class:`PlanError` where no class has a candidate, or the map does not hold the products
    that would show that a limit is kept; :class:`InfeasibleBudget` naming the nearest budget or
    limit that can be met.
    """
    given, broken = limits, ""
    for _ in range(REPETITIONS):
        try:
            outcome = _solve(problem.goal, classes, given, deadline, progress)
        except InfeasibleBudget as error:
            if not broken:
                raise
            raise InfeasibleBudget(broken, error.resource, error.nearest) from None
        tighter, broken = _tightened(problem, limits, given, outcome)
        if not broken:
            return outcome if given == limits else outcome.noted(TIGHTENED)
        if outcome.certificate.interrupted:
            break
        given = tighter
    raise InfeasibleBudget(broken, "limit", float("nan"))


def _tightened(
    problem: Problem, limits: Limits, given: Limits, outcome: Outcome
) -> tuple[Limits, str]:
    """The limits for another repetition, and what this one broke (empty: nothing)."""
    now, then = (footprint(problem.inventory, sizes) for sizes in ({}, outcome.sizes))
    before = [group.untouched for group in outcome.classes]
    after = [option or group.untouched for group, option in outcome.pairs]
    broken, changed = [], dict[str, Any]()
    for name, more in (
        ("parameters", then.parameters - now.parameters),
        ("memory", then.nbytes - now.nbytes),
    ):
        ceiling: Ceiling | None = getattr(limits, name)
        if ceiling is not None and (takes := ceiling.spent(before) + more) > ceiling.most:
            changed[name] = ceiling.lowered(takes - ceiling.spent(after))
            broken.append(f"fits {ceiling.basis}: the nearest has {ceiling.as_given(takes)}")
    if limits.latency_us is not None and given.latency_us is not None:
        together = problem.predictor.weights(outcome.sizes)
        time_us = together.latency_us
        if time_us is None:
            raise PlanError(
                "the limit cannot be kept for certain: the map does not hold the planned sizes "
                "together; pin what shares a product with others (--pin '*:width=keep'), or "
                f"sweep it: {together.missing}"
            )
        if time_us > limits.latency_us * (1 + ROUNDING):
            pairs = zip(before, after, strict=True)
            saved = sum((a.latency_us or 0.0) - (b.latency_us or 0.0) for a, b in pairs)
            counted_us = (limits.latency_now_us or 0.0) - saved
            changed["latency_us"] = limits.latency_us - (time_us - counted_us)
            broken.append(
                f"is within {limits.latency_us:.1f} µs: the nearest takes {time_us:.1f} µs"
            )
    if not broken:
        return given, ""
    joined = " and ".join(broken)
    return replace(given, **changed), f"no plan was found that {joined}, with all dims resized"


@dataclass(frozen=True)
class _Resource:
    """The solver's second resource; ``refused`` says in the user's terms what would do."""

    name: str
    rows: list[list[float]]
    limit: float
    refused: Callable[[float], InfeasibleBudget]


def _solve(
    goal: Objective,
    classes: Sequence[DimClass],
    limits: Limits,
    deadline: float | None,
    progress: Progress | None,
) -> Outcome:
    """Choose one candidate a class, dims counted one by one.

    Among candidates of equal value only the cheapest is kept, so that nothing is padded further
    than the objective asks.
    """
    free = [group for group in classes if group.candidates]
    stuck = [group.untouched for group in classes if not group.candidates]
    if not free:
        reason = next((group.missing for group in classes if group.missing), "")
        raise PlanError(
            "the map knows no safe size for any dim of this checkpoint; 'gacprof sweep --for "
            "CHECKPOINT' measures what a plan needs" + (f" ({reason})" if reason else "")
        )
    options = [_cheapest_of_equals(goal, group, limits) for group in free]
    ceiling, costs, second = _resources(free, options, stuck, limits)
    most = sum(max(row) for row in costs)
    room = most if ceiling is None else min(ceiling.most - ceiling.spent(stuck), most)
    left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
    try:
        solution = solve(
            costs,
            [[goal.value(g, o) for o in row] for g, row in zip(free, options, strict=True)],
            room,
            None if second is None else second.rows,
            None if second is None else second.limit,
            seconds=left,
            progress=progress,
        )
    except InfeasibleBudget as error:
        if second is not None and error.resource == "limit":
            raise second.refused(float(error.nearest)) from None
        assert ceiling is not None
        within = f" within the limit on {second.name}" if second else ""
        nearest = int(error.nearest) + ceiling.spent(stuck)
        raise _refused(ceiling, nearest, within) from None
    picked = (row[j] for row, j in zip(options, solution.choice, strict=True))
    certificate = Certificate(
        solver="exact multi-choice knapsack",
        measures=goal.measures,
        value=solution.value,
        bound=solution.bound,
        gap=solution.gap,
        proved=solution.proved,
        interrupted=solution.interrupted,
        notes=list(solution.notes),
    )
    chosen = [next(picked) if group.candidates else None for group in classes]
    return Outcome(classes, chosen, certificate)


def _cheapest_of_equals(goal: Objective, group: DimClass, limits: Limits) -> list[Option]:
    cheapest: dict[tuple[float, float | None, float | None], Option] = {}
    pinned = group.bounds.pin is not None
    for option in sorted(group.candidates, key=lambda o: (o.cost, o.size)):
        if limits.energy_kept is not None and option.kept is None and not pinned:
            continue
        latency = option.latency_us if limits.latency_us is not None else None
        cheapest.setdefault((goal.value(group, option), option.kept, latency), option)
    if not cheapest:
        raise PlanError(f"what {group.name} would keep is not known: no quality floor can be kept")
    return sorted(cheapest.values(), key=lambda o: (o.fused, o.size))


def _resources(
    free: Sequence[DimClass],
    options: Sequence[Sequence[Option]],
    stuck: Sequence[Option],
    limits: Limits,
) -> tuple[Ceiling | None, list[list[int]], _Resource | None]:
    """The ceiling on the solver's first resource, its costs, and the second resource."""
    parameters = [[option.cost for option in row] for row in options]
    nbytes = [[option.nbytes for option in row] for row in options]
    tight, memory = limits.parameters, limits.memory
    seconds = []
    ceiling, costs = (memory, nbytes) if tight is None and memory else (tight, parameters)
    if tight is not None and memory is not None:
        # Where all dtypes agree, bytes are parameters times a width, so that only the tighter of
        # the two ceilings matters; else bytes are a resource of their own.
        room = memory.most - memory.spent(stuck)
        width = _width(options)
        if width is None:
            rows = [[float(n) for n in row] for row in nbytes]  # exact: far below 2**53
            spent = memory.spent(stuck)
            seconds.append(
                _Resource(
                    "memory",
                    rows,
                    float(room),
                    lambda nearest: _refused(memory, math.ceil(nearest) + spent, ""),
                )
            )
        elif (tight.most - tight.spent(stuck)) * width > room:
            ceiling, costs = memory, nbytes
    if limits.latency_us is not None:
        seconds.append(_latency(free, options, limits, limits.latency_us))
    if limits.energy_kept is not None:
        seconds.append(_energy(free, options, len(stuck), limits.energy_kept))
    if len(seconds) > 1:
        names = " and ".join(second.name for second in seconds)
        raise PlanError(f"the solver keeps to a budget and one more limit, not {names}: drop one")
    return ceiling, costs, seconds[0] if seconds else None


def _width(options: Sequence[Sequence[Option]]) -> int | None:
    """Bytes per parameter, where they are the same whole number for all options."""
    widths = {divmod(o.nbytes, o.cost) for row in options for o in row if o.cost}
    width, rest = next(iter(widths)) if len(widths) == 1 else (0, 1)
    return None if rest else width


def _refused(ceiling: Ceiling, nearest: int, within: str) -> InfeasibleBudget:
    return InfeasibleBudget(
        f"no plan fits {ceiling.basis}{within}; the nearest budget that can be met is "
        f"{ceiling.as_given(nearest)}",
        "budget",
        nearest,
    )


def _latency(
    free: Sequence[DimClass], options: Sequence[Sequence[Option]], limits: Limits, wanted: float
) -> _Resource:
    """What a choice does not save of the most time that its class can. Classes that share a
    product (a rank and a width) are added up as if the other did not change."""
    if limits.latency_now_us is None:
        raise PlanError("the map lacks some of the planned products: no latency limit can be kept")
    saved = []  # by each option against the class as it is, negative where slower
    for group, row in zip(free, options, strict=True):
        before, after = group.untouched.latency_us, [option.latency_us for option in row]
        known = [t for t in after if t is not None]
        if before is None or len(known) < len(after):
            raise PlanError(f"the latency of {group.name} is not known: no limit can be kept")
        saved.append([before - t for t in known])
    most = [max(row) for row in saved]
    shift = sum(most) - limits.latency_now_us

    def too_slow(nearest: float) -> InfeasibleBudget:
        least = math.ceil((nearest - shift) * 10) / 10  # as said, it can be met
        message = f"no plan is within {wanted:.1f} µs; the nearest is {least:.1f} µs"
        return InfeasibleBudget(message, "limit", least)

    rows = [[m - s for s in row] for m, row in zip(most, saved, strict=True)]
    return _Resource("latency", rows, wanted + shift, too_slow)


def _energy(
    free: Sequence[DimClass], options: Sequence[Sequence[Option]], stuck: int, floor: float
) -> _Resource:
    """The shares of energy lost, summed over dims."""
    members = sum(len(group.members) for group in free) + stuck

    def too_lossy(nearest: float) -> InfeasibleBudget:
        kept = math.floor((1 - nearest / members) * 1e4) / 1e4
        message = f"no plan keeps {floor:.4f} of the energy; the nearest is {kept:.4f}"
        return InfeasibleBudget(message, "limit", kept)

    rows = [[_lost(g, o) for o in row] for g, row in zip(free, options, strict=True)]
    return _Resource("energy", rows, (1 - floor) * members, too_lossy)


def _lost(group: DimClass, option: Option) -> float:
    if option.kept is None:
        raise PlanError(f"what {group.name} keeps at {option.size} is not known: no quality floor")
    return len(group.members) - option.kept
