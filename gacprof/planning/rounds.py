"""Dims that meet in one product are decided in rounds, until no choice changes any other.

What a width costs depends on the rank beside it in the same product, and the other way round. Each
round judges every dim beside the sizes that the round before chose for the others. Where a round
chooses what it was given, planning the aligned output again changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from gacprof.checkpoint.inventory import ALIGNED
from gacprof.core.errors import PlanError
from gacprof.diagnosing.companions import Sizes, aligned_across, changed_across, holds, meet
from gacprof.diagnosing.predict import Predictor
from gacprof.planning.classes import DimClass, Option
from gacprof.planning.solving import Limits, Outcome
from gacprof.solver import InfeasibleBudget

ROUNDS = 5
"""One finds that sizes change, one what follows from it, one that nothing more does."""


@dataclass(frozen=True)
class Decided:
    """What one round was given and what it chose."""

    classes: Sequence[DimClass]
    offered: Mapping[str, Sequence[Option]]
    limits: Limits
    outcome: Outcome


Decide = Callable[[Sizes, float | None], Decided]
"""One round: the sizes to judge beside, and the seconds left."""


def decide_together(
    predictor: Predictor,
    decide: Decide,
    pinned: Mapping[str, int],
    time_limit: float | None = None,
) -> Decided:
    """Rounds of ``decide`` until the sizes stay, :data:`ROUNDS` at most. The first judges every dim
    beside aligned ones, but for those that are ``pinned``.

    The certificate says what was proved: each round is solved exactly, given the sizes that it
    judges beside. Raises what the first round raises.
    """
    deadline = None if time_limit is None else time.monotonic() + time_limit
    inventory = predictor.inventory
    if not meet(inventory):
        return decide(Sizes(), time_limit)
    now = {dim.name: dim.size for dim in inventory.dims}
    start = aligned_across(inventory, pinned)
    try:
        found = decide(start, time_limit)
    except InfeasibleBudget:  # beside sizes that nothing has yet: what is refused is said as it is
        start = Sizes()
        found = decide(start, time_limit)
    given, chosen, rounds = now | dict(start.across), _sizes(now, found.outcome), 1
    while chosen != given and rounds < ROUNDS and not found.outcome.certificate.interrupted:
        left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
        try:
            found = decide(Sizes(chosen, chosen), left)
        except (InfeasibleBudget, PlanError):
            break  # beside these sizes nothing fits: the plan so far stands, not proved
        given, chosen, rounds = chosen, _sizes(now, found.outcome), rounds + 1
    if chosen == given == now:
        return found
    return _noted(predictor, found, given, chosen, rounds)


def _sizes(now: Mapping[str, int], outcome: Outcome) -> dict[str, int]:
    """All dims' sizes by name; one that is multiplied out keeps the size that it had."""
    return {**now, **{name: size for name, size in outcome.sizes.items() if size is not None}}


def _noted(
    predictor: Predictor,
    found: Decided,
    given: Mapping[str, int],
    chosen: Mapping[str, int],
    rounds: int,
) -> Decided:
    proof = found.outcome.certificate
    if given == chosen:
        told = (
            f"dims that meet in one product were decided in {rounds} rounds, each beside the sizes "
            "that the round before chose, until none changed: the proof is for the choice beside "
            "these sizes, not over all combinations of coupled dims"
        )
    else:
        told = (
            f"dims that meet in one product still changed each other after {rounds} rounds: "
            "nothing is proved, and planning the aligned output again may change more"
        )
    notes = [*proof.notes, told]
    unknown = _unmeasured(predictor, chosen)
    if unknown:
        notes.append(
            f"the map does not hold {len(unknown)} dims beside the new sizes of those that they "
            f"meet, the first is {unknown[0]}: they were judged beside others. After "
            "realigning, 'gacprof sweep --for OUT' measures them"
        )
    proved = proof.proved and given == chosen and not unknown
    certificate = proof.model_copy(update={"notes": notes, "proved": proved})
    return replace(found, outcome=replace(found.outcome, certificate=certificate))


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
