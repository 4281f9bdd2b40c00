"""The workers of a sweep, which of them are equal, and how a suite's curves are dealt to them."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gacprof.core.formatting import slug
from gacprof.core.points import Block, Environment, PointNote, curve_key
from gacprof.devices.environment import STEERING
from gacprof.extras.fleet.cluster import Hello, ShareStep, WorkerPlace
from gacprof.sweeping.engine import CurveOutcome
from gacprof.sweeping.run import CONDITIONS
from gacprof.sweeping.store import RunFolder, read_blocks
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
class CurveShare:
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


def split(plans: Sequence[CurvePlan], devices: int, cost: Cost) -> list[CurveShare]:
    """At most so many shares of about equal cost: the longest curve first, each to the share that
    has least (Graham 1969: at most 4/3 of the best split's longest)."""
    shares = [CurveShare([]) for _ in range(min(devices, len(plans)))]
    loads = [0.0] * len(shares)
    for plan in sorted(plans, key=lambda p: (-cost(p), p.key)):
        least = loads.index(min(loads))
        shares[least].plans.append(plan)
        loads[least] += cost(plan)
    return shares


@dataclass
class Member:
    """A worker and what it is at. ``device`` is its name in the run folder."""

    place: WorkerPlace
    handle: Any
    pending: deque[Any]
    group: DeviceGroup | None = None
    device: str = ""
    share: CurveShare | None = None
    processes: dict[int, int] = field(default_factory=dict)
    blocks: int = 0
    done: float = 0.0
    total: float = 0.0

    @property
    def state(self) -> str:
        if self.group is None:
            return "starting"
        return "idle" if self.share is None else "measuring"


@dataclass
class DeviceGroup:
    """Devices of one kind, their run folder, and the curves that none of them has yet."""

    kind: str
    hello: Hello
    store: RunFolder
    plans: list[CurvePlan]
    queue: list[CurveShare] = field(default_factory=list)
    links: list[CurvePlan] = field(default_factory=list)
    linked: set[str] = field(default_factory=set)
    outcomes: dict[str, CurveOutcome] = field(default_factory=dict)
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    number: int = 0
    process: int = 0
    calls: int = 0
    is_split: bool = False
    held: list[Block] | None = None
    """The folder's blocks as read last, until more are appended."""

    def replayed(self) -> None:
        """Go on behind what the folder holds."""
        for block in self.blocks():
            self._count(block)
            self.number = max(self.number, block.number + 1)
            self.process = max(self.process, block.process + 1)

    def blocks(self) -> list[Block]:
        if self.held is None:
            self.held = read_blocks(self.store.path)
        return self.held

    def _count(self, block: Block) -> None:
        self.counts[curve_key(block.calls[0].point, block.axis), block.device] += 1
        self.calls += len(block.calls)

    def keep(self, measured: Iterable[tuple[Member, ShareStep]]) -> None:
        """Append the blocks and notes of workers, under the folder's own numbers, all at once."""
        notes: list[PointNote] = []
        fresh: list[Block] = []
        for member, step in measured:
            notes += step.notes
            member.blocks += len(step.blocks)
            fresh += [self._numbered(member, block) for block in step.blocks]
        self.store.note(notes)
        if fresh:
            self.store.append(*fresh)
            self.held = None

    def _numbered(self, member: Member, block: Block) -> Block:
        if block.process not in member.processes:
            member.processes[block.process] = self.process
            self.process += 1
        process = member.processes[block.process]
        made = replace(block, number=self.number, process=process, device=member.device)
        self.number += 1
        self._count(made)
        return made

    def known(self, own: Iterable[CurvePlan], links: Iterable[CurvePlan], by: str) -> list[Block]:
        """What there is of these curves; of link curves only what that device measured."""
        ours, linked = {p.key for p in own}, {p.key for p in links}
        if not any(key in ours or (key in linked and of == by) for key, of in self.counts):
            return []
        keys = ((block, curve_key(block.calls[0].point, block.axis)) for block in self.blocks())
        return [b for b, key in keys if key in ours or (key in linked and b.device == by)]
