"""Making a plan: dims that meet in one product are decided in rounds, until none changes another.

What a width costs depends on the rank beside it in the same product, and the other way round. Each
round judges every dim beside the sizes that the round before chose for the others. Where a round
chooses what it was given, planning the aligned output again changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from gacprof.checkpoint.inventory import ALIGNED, Inventory
from gacprof.checkpoint.tensors import TensorReader
from gacprof.cliffmap.source import SizeSource
from gacprof.core import Progress
from gacprof.core.errors import PlanError
from gacprof.diagnosing.companions import (
    Sizes,
    aligned_across,
    any_crossing,
    changed_across,
    holds,
    sharing_an_axis,
    time_together,
)
from gacprof.diagnosing.predict import Predictor
from gacprof.planning.classes import Kept
from gacprof.planning.evaluation import summary
from gacprof.planning.problem import Problem, pose
from gacprof.planning.request import PlanRequest
from gacprof.planning.schema import Plan
from gacprof.planning.solving import ROUNDING, Outcome, solve_jointly
from gacprof.solver import InfeasibleBudget

ROUNDS = 5
"""One finds that sizes change, one what follows from it, one that nothing more does."""


def make_plan(
    inventory: Inventory,
    source: SizeSource,
    request: PlanRequest,
    *,
    reader: TensorReader | None = None,
    kept: Kept | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Choose one size for every adjustable dim of ``inventory``.

    The request's time limit or Ctrl-C ends a search early with its best plan and the gap;
    ``progress(value, bound, what)`` is called as it goes on. ``reader`` reads the tensors where
    they are not on disk; ``kept`` are the shares of energy kept where the original weights are at
    hand.

    Raises :class:`PlanError`, or :class:`SolverError` naming the nearest feasible budget.
    """
    problem = pose(inventory, source, request, reader=reader, kept=kept)
    limits = problem.limits(request.least_kept)
    seconds = request.time_limit
    deadline = None if seconds is None else time.monotonic() + seconds

    def decide(sizes: Sizes) -> Outcome:
        classes = problem.classes(sizes)
        return solve_jointly(problem, classes, limits, deadline=deadline, progress=progress)

    outcome = _decide_in_rounds(problem, decide)
    if problem.goal.name == "pad":
        outcome = _only_where_it_gains(problem, outcome)
    made = summary(problem, outcome, limits)
    _refuse_unmet(made, request)
    return made


def _decide_in_rounds(problem: Problem, decide: Callable[[Sizes], Outcome]) -> Outcome:
    """Rounds of ``decide`` until the sizes stay, :data:`ROUNDS` at most. The first judges every dim
    beside aligned ones, but for those that are pinned.

    The certificate says what was proved: each round is solved exactly, given the sizes that it
    judges beside. Raises what the first round raises.
    """
    inventory = problem.inventory
    if not any_crossing(inventory):
        return decide(Sizes())
    now = {dim.name: dim.size for dim in inventory.dims}
    start = aligned_across(inventory, problem.pinned)
    try:
        outcome = decide(start)
    except InfeasibleBudget:  # a refusal has to hold beside the sizes that there are
        start = Sizes()
        outcome = decide(start)
    given, chosen, rounds = now | dict(start.across), _all_sizes(now, outcome), 1
    while chosen != given and rounds < ROUNDS and not outcome.certificate.interrupted:
        try:
            outcome = decide(Sizes(chosen, chosen))
        except (InfeasibleBudget, PlanError):
            break  # beside these sizes nothing fits: the plan so far stands, not proved
        given, chosen, rounds = chosen, _all_sizes(now, outcome), rounds + 1
    if chosen == given == now:
        return outcome
    return _noted(problem.predictor, outcome, given, chosen, rounds)


def _only_where_it_gains(problem: Problem, outcome: Outcome) -> Outcome:
    """The outcome with dims of one axis as they were where padding all of them takes longer: each
    was aligned beside aligned ones, and their product grew by more than that is worth."""
    predictor, chosen, notes = problem.predictor, dict(outcome.sizes), []
    kept: set[str] = set()
    coupled = False
    for group in sharing_an_axis(problem.inventory):
        sizes = {dim.name: chosen.get(dim.name, dim.size) for dim in group}
        changed = {d.name: sizes[d.name] for d in group if sizes[d.name] != d.size}
        grown = {name: size for name, size in changed.items() if size is not None}
        if not grown or len(grown) < len(changed):
            continue
        now, then = (time_together(predictor, group, each) for each in ({}, grown))
        if now is None or then is None:
            notes.append(f"what {', '.join(grown)} cost together is not known")
        elif then < now:
            coupled = True
        else:
            kept |= set(grown)
            notes.append(
                f"{', '.join(grown)} stay as they are: padded together they would take "
                f"{then / now - 1:.1%} longer; whether other sizes are faster is not known"
            )
    proved = not notes
    if coupled:
        notes.append(
            "dims that add up on one axis were decided each beside aligned others: the proof is "
            "not over all combinations of them"
        )
    if not notes:
        return outcome
    options = [
        group.as_it_is or group.untouched if {d.name for d in group.members} <= kept else option
        for group, option in outcome.pairs
    ]
    return replace(outcome, chosen=options).noted(*notes, proved=proved)


def _all_sizes(now: Mapping[str, int], outcome: Outcome) -> dict[str, int]:
    """All dims' sizes by name; one that is multiplied out keeps the size that it had."""
    return {**now, **{name: size for name, size in outcome.sizes.items() if size is not None}}


def _noted(
    predictor: Predictor,
    outcome: Outcome,
    given: Mapping[str, int],
    chosen: Mapping[str, int],
    rounds: int,
) -> Outcome:
    if given == chosen:
        note = (
            f"dims that meet in one product were decided in {rounds} rounds, each beside the sizes "
            "that the round before chose, until none changed: the proof is for the choice beside "
            "these sizes, not over all combinations of coupled dims"
        )
    else:
        note = (
            f"dims that meet in one product still changed each other after {rounds} rounds: "
            "nothing is proved, and planning the aligned output again may change more"
        )
    notes = [note]
    unknown = _unmeasured(predictor, chosen)
    if unknown:
        notes.append(
            f"the map does not hold {len(unknown)} dims beside the new sizes of those that they "
            f"meet, the first is {unknown[0]}: they were judged beside others. After "
            "realigning, 'gacprof sweep --for OUT' measures them"
        )
    return outcome.noted(*notes, proved=given == chosen and not unknown)


def _unmeasured(predictor: Predictor, chosen: Mapping[str, int]) -> list[str]:
    """Dims whose companions across a product change, where the map lacks that product."""
    found = []
    for dim in predictor.inventory.dims:
        if dim.size % ALIGNED == 0 and chosen[dim.name] == dim.size:
            continue  # beside odd ones too it shows what it costs
        changed = changed_across(predictor.inventory, [dim], [dim], chosen)
        if changed and holds(predictor, [dim]) and not holds(predictor.beside(changed), [dim]):
            found.append(dim.name)
    return found


def _refuse_unmet(made: Plan, request: PlanRequest) -> None:
    """Refuse where the best by the objective itself does not reach what was asked of it."""
    best = "the nearest" if made.certificate.proved else "the nearest found in the time"
    floor, kept = request.least_kept, made.energy_kept
    if floor is not None and made.objective == "energy":
        if kept is None:
            raise PlanError("what a pinned dim keeps is not known: no quality floor can be kept")
        if kept < floor - ROUNDING:
            refused = f"no plan within the limits keeps {floor:.4f} of the energy; {best} is "
            raise InfeasibleBudget(f"{refused}{int(kept * 1e4) / 1e4:.4f}", "limit", kept)
    limit, after = request.latency_limit_us, made.predicted_after_us
    if limit is not None and made.objective == "latency":
        if after is None:
            raise PlanError("the plan's latency is not known: no latency limit can be kept")
        if after > limit * (1 + ROUNDING):
            refused = f"no plan within the limits takes {limit:.1f} µs; {best} takes "
            raise InfeasibleBudget(f"{refused}{after:.1f} µs", "limit", after)
