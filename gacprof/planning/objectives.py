"""What a plan is after. Each objective says which options are eligible and what one is worth.

======== ============================================================ =======================
name     maximises                                                    eligible sizes
======== ============================================================ =======================
pad      least memory, losing nothing                                 safe, not below the dim
energy   the energy kept (tail of squared singular values)            safe, spectrum known
gac      Σ sᵢ·(|Wᵢ(d)| − |W*ᵢ|), Eq. 4 of arXiv 2604.09595             safe, next to the dim
latency  least predicted latency                                      latency and loss known
======== ============================================================ =======================

*Safe* includes sizes that seem so though noise leaves them undecided, and a dim's own size while
nothing says that it is misaligned. A pinned class has its one option whatever the objective, and
where the user allows it every class may stay as it is, safe or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from gacprof.core.errors import PlanError
from gacprof.planning.classes import DimClass, Option

GAC_NEIGHBOURS = 2
"""Eq. 4 is linear in cost, so its optimum puts all but one class at an end of its window
(measured: 98–100 %). It is sound only within about one alignment step: two safe sizes on
either side, like the paper's own example 107.3 → {96, 104, 112, 128}."""

MAX_SCORE = 1e200
"""Scores times parameters stay within a double's range."""


class Objective(Protocol):
    name: str
    measures: str

    def eligible(self, group: DimClass) -> list[Option]: ...
    def value(self, group: DimClass, option: Option) -> float: ...


class Pad:
    """Grow every dim to a safe size at the least cost in memory; nothing is cut."""

    name = "pad"
    measures = "parameters, negated"

    def eligible(self, group: DimClass) -> list[Option]:
        largest = max(dim.size for dim in group.members)
        return [o for o in group.options if o.offered and o.size >= largest]

    def value(self, group: DimClass, option: Option) -> float:
        return -float(option.cost)


class Energy:
    """Keep the most energy. Zero padding keeps all and adds none, so it is worth no more."""

    name = "energy"
    measures = "shares of energy kept, summed over dims"

    def eligible(self, group: DimClass) -> list[Option]:
        return [o for o in group.options if o.offered and o.kept is not None]

    def value(self, group: DimClass, option: Option) -> float:
        return option.kept or 0.0  # unknown only for a width that is pinned below its size


class Gac:
    """The paper's Eq. 4 with its importance scores, within its window rule."""

    name = "gac"
    measures = "importance × parameters gained (Eq. 4)"

    def __init__(self, scores: Mapping[str, float] | None = None) -> None:
        self._scores = dict(scores or {})

    def eligible(self, group: DimClass) -> list[Option]:
        offered = [o for o in group.options if o.offered and not o.fused]  # the paper fuses none
        below = [o for o in offered if o.cost < group.before]
        above = [o for o in offered if o.cost >= group.before]
        return below[-GAC_NEIGHBOURS:] + above[:GAC_NEIGHBOURS]

    def value(self, group: DimClass, option: Option) -> float:
        score = sum(self._scores.get(dim.name, 1.0) for dim in group.members) / len(group.members)
        return score * (option.cost - group.before)


class Latency:
    """The fastest by prediction. Sizes need not be safe: what they cost is in the number."""

    name = "latency"
    measures = "predicted µs over dims, negated"

    def eligible(self, group: DimClass) -> list[Option]:
        return [o for o in group.options if o.latency_us is not None and o.kept is not None]

    def value(self, group: DimClass, option: Option) -> float:
        return -(option.latency_us or 0.0)  # unknown only where a pin leaves no choice


def objective(name: str, scores: Mapping[str, float] | None = None) -> Objective:
    """The objective of that name. Raises :class:`PlanError` listing those there are."""
    if scores is not None and name != "gac":
        raise PlanError(f"scores are for the objective 'gac'; '{name}' does not use any")
    made: dict[str, Objective] = {o.name: o for o in (Pad(), Energy(), Gac(scores), Latency())}
    if name not in made:
        raise PlanError(f"unknown objective '{name}' (there are {', '.join(made)})")
    return made[name]


def offered(goal: Objective, group: DimClass, untouched: bool) -> list[Option]:
    """What the solver may choose from; empty where the class has to stay as it is.

    Raises :class:`PlanError` where staying would break what the user asked of its sizes.
    """
    if group.bounds.pin is not None:
        return list(group.options)
    options = goal.eligible(group)
    if untouched and group.is_untouched:
        as_it_is = [o for o in group.options if o.size == group.untouched.size and not o.fused]
        options += [o for o in as_it_is if o not in options]
    if options:
        return sorted(options, key=lambda o: (o.fused, o.size))
    if not all(group.bounds.allow(dim.size) for dim in group.members):
        raise PlanError(f"{group.name} must be {group.bounds}: {_nothing_safe(group)}")
    if not group.is_untouched:
        raise PlanError(f"{group.name} have no common size: {_nothing_safe(group)}")
    return []


def _nothing_safe(group: DimClass) -> str:
    for dim in group.members:
        if dim.most is not None and group.bounds.least > dim.most:
            return f"the dense weight's rank is {dim.dense_size}"
    why = group.missing or "a wider --window offers more sizes"
    return f"the map knows no such size that suits the objective ({why})"


def check_scores(
    scores: Mapping[str, float] | None, dims: Sequence[str], classes: Sequence[DimClass]
) -> None:
    """Importance scores, if there are any, must be numbers ≥ 0, for every dim with a choice.

    ``dims`` are the names of all dims. Raises :class:`PlanError`; a dim without a score is
    refused rather than given one, for the scale of the others is not known.
    """
    if scores is None:
        return
    for name, score in scores.items():
        if name not in dims:
            raise PlanError(
                f"the scores name '{name}', which is no dim here; dims are named like '{dims[0]}'"
            )
        if not (isinstance(score, int | float) and 0 <= score <= MAX_SCORE):
            small = isinstance(score, float) or abs(score) < 2**63
            shown = f"{score:.4g}" if small else "a huge integer"
            raise PlanError(f"the score of '{name}' is {shown}: it must be 0 to {MAX_SCORE:g}")
    free = [dim.name for group in classes if group.bounds.pin is None for dim in group.members]
    lacking = [name for name in free if name not in scores]
    if lacking:
        kind = lacking[0].rpartition(":")[2]
        raise PlanError(
            f"{len(lacking)} of {len(free)} dims have no score, the first is '{lacking[0]}': give "
            f"each its own, or leave them as they are (--pin '*:{kind}=keep')"
        )
