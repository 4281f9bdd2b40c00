"""Which devices are equal, and how a suite's curves are dealt out over them."""

from __future__ import annotations

import hashlib
import heapq
import json
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from gacprof.core.formatting import slug
from gacprof.core.points import Environment
from gacprof.devices.environment import STEERING
from gacprof.sweeping.resuming import CONDITIONS
from gacprof.sweeping.suite import CurvePlan

ALIKE = (*CONDITIONS, "native_bfloat16", "sm_count", "l2_bytes", *STEERING)
"""Facts that equal devices share, beside name, architecture and every version of the stack."""
LINKED = 0.1
"""Link curves take at most this share of a device's time, beyond the first of them."""
FEWEST_LINKED_DIMS = 8
"""A link curve of fewer dims has few A/A replicates."""

Cost = Callable[[CurvePlan], float]
"""About how long a curve takes, in any unit."""


def kind_of(environment: Environment, timer: str) -> str:
    """The name of all devices that are equal to this one: ``nvidia-h100-80gb-hbm3-3f2a1c``.

    Devices of one name have the same model, architecture, libraries, driver and timer, and their
    blocks may stand in one map.
    """
    facts = {name: environment.facts.get(name) for name in ALIKE}
    what = [environment.kind, environment.arch, dict(environment.stack), facts, timer]
    text = json.dumps([environment.name, *what], sort_keys=True)
    return f"{slug(environment.name)}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"


@dataclass
class Share:
    """Curves that one device measures together. ``losses`` counts the workers that were lost with
    it, one after the other, without a block; ``tried`` are the places that they were on."""

    plans: list[CurvePlan]
    losses: int = 0
    tried: set[Hashable] = field(default_factory=set)


def link_curves(plans: Sequence[CurvePlan], devices: int, cost: Cost) -> list[CurvePlan]:
    """Curves that every one of several equal devices measures: what their maps are compared by.

    The cheapest ones of operators and dtypes as different as there are, whole axes rather than
    refined ones; none for a single device.
    """
    if devices < 2:
        return []
    allowed = LINKED * sum(map(cost, plans)) / devices
    order = sorted(
        plans, key=lambda p: (len(p.points) < FEWEST_LINKED_DIMS, bool(p.refined), cost(p), p.key)
    )
    chosen: list[CurvePlan] = []
    sorts: set[tuple[str, str]] = set()
    for plan in order:
        point = next(iter(plan.points.values()))
        if (point.operator, point.dtype) in sorts:
            continue
        if chosen and sum(map(cost, [*chosen, plan])) > allowed:
            continue
        chosen.append(plan)
        sorts.add((point.operator, point.dtype))
    return chosen


def split(plans: Sequence[CurvePlan], devices: int, cost: Cost) -> list[Share]:
    """At most so many shares of about equal cost: the longest curve first, each to the share that
    has least (Graham 1969: at most 4/3 of the best split's longest)."""
    shares = [Share([]) for _ in range(min(devices, len(plans)))]
    loads = [(0.0, number) for number in range(len(shares))]
    for plan in sorted(plans, key=lambda p: (-cost(p), p.key)):
        load, number = heapq.heappop(loads)
        shares[number].plans.append(plan)
        heapq.heappush(loads, (load + cost(plan), number))
    return shares
