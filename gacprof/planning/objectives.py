"""What a plan is after. Each objective says which options are eligible and what one is worth.

======== ============================================================ =======================
name     maximises                                                    eligible sizes
======== ============================================================ =======================
pad      least memory, losing nothing                                 safe, not below the dim
energy   the energy kept (tail of squared singular values)            safe, spectrum known
gac      Σ sᵢ·(|Wᵢ(d)| − |W*ᵢ|), Eq. 4 of arXiv 2604.09595             safe, next to the dim
latency  least predicted latency                                      latency and loss known
======== ============================================================ =======================
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from gacprof.errors import PlanError
from gacprof.planning.classes import DimClass, Option

GAC_NEIGHBOURS = 2
"""Eq. 4 is linear in cost, so its optimum puts all but one class at an end of its window
(measured: 98–100 %). It is sound only within about one alignment step: two safe sizes on
either side, like the paper's own example 107.3 → {96, 104, 112, 128}."""


class Objective(Protocol):
    name: str

    def eligible(self, group: DimClass) -> list[Option]: ...
    def value(self, group: DimClass, option: Option) -> float: ...


class Pad:
    """Grow every dim to a safe size at the least cost in memory; nothing is cut."""

    name = "pad"

    def eligible(self, group: DimClass) -> list[Option]:
        largest = max(dim.size for dim in group.members)
        return [o for o in group.options if o.safe and o.size >= largest]

    def value(self, group: DimClass, option: Option) -> float:
        return -float(option.cost)


class Energy:
    """Keep the most energy. Zero padding keeps all and adds none, so it is worth no more."""

    name = "energy"

    def eligible(self, group: DimClass) -> list[Option]:
        return [o for o in group.options if o.safe and o.kept is not None]

    def value(self, group: DimClass, option: Option) -> float:
        assert option.kept is not None
        return option.kept


class Gac:
    """The paper's Eq. 4 with its importance scores, within its window rule."""

    name = "gac"

    def __init__(self, scores: Mapping[str, float] | None = None) -> None:
        self._scores = dict(scores or {})

    def eligible(self, group: DimClass) -> list[Option]:
        safe = [o for o in group.options if o.safe]
        safe = [o for o in safe if not o.fused]  # the paper knows no such option
        below = [o for o in safe if o.cost < group.before]
        above = [o for o in safe if o.cost >= group.before]
        return below[-GAC_NEIGHBOURS:] + above[:GAC_NEIGHBOURS]

    def value(self, group: DimClass, option: Option) -> float:
        score = sum(self._scores.get(dim.name, 1.0) for dim in group.members) / len(group.members)
        return score * (option.cost - group.before)


class Latency:
    """The fastest by prediction. Sizes need not be safe: what they cost is in the number."""

    name = "latency"

    def eligible(self, group: DimClass) -> list[Option]:
        return [o for o in group.options if o.latency_us is not None and o.kept is not None]

    def value(self, group: DimClass, option: Option) -> float:
        assert option.latency_us is not None
        return -option.latency_us


def objective(name: str, scores: Mapping[str, float] | None = None) -> Objective:
    """The objective of that name. Raises :class:`PlanError` listing those there are."""
    if scores and name != "gac":
        raise PlanError(f"scores are for the objective 'gac'; '{name}' does not use any")
    made: dict[str, Objective] = {o.name: o for o in (Pad(), Energy(), Gac(scores), Latency())}
    if name not in made:
        raise PlanError(f"unknown objective '{name}' (there are {', '.join(made)})")
    return made[name]
