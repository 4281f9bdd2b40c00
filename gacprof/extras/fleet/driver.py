"""A suite swept by all devices of a cluster: one run folder a kind of device, one map of each.

The driver starts a worker on every device, groups those that are equal, and deals each group's
curves out. Every worker has two calls under way, so that it never waits for the driver; what they
measured is on disk here before the next is asked for. A worker that is gone costs its batch: its
curves go to another one, with the blocks that there are.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gacprof
from gacprof.core.errors import MeasurementError, first_line
from gacprof.core.files import Record
from gacprof.core.points import PointNote
from gacprof.devices.worker import BLOCK_TIMEOUT_S
from gacprof.extras.fleet.cluster import (
    THREADS,
    Cluster,
    Hello,
    OpenerOn,
    ShareStep,
    Worker,
    WorkerPlace,
)
from gacprof.extras.fleet.members import (
    CurveShare,
    DeviceGroup,
    Member,
    kind_of,
    link_curves,
    split,
)
from gacprof.sweeping.engine import CurveOutcome, RunSummary
from gacprof.sweeping.estimate import guessed_s
from gacprof.sweeping.run import header_of, opened
from gacprof.sweeping.store import RunFolder, read_notes
from gacprof.sweeping.suite import CurvePlan, Suite

AHEAD = 2
"""Calls of a worker that are under way: one is measured, one waits."""
SHOW_S = 0.5
LOOK_S = 5.0
"""How often new devices are looked for where there is work left for them."""
TRIES = 3
"""Workers lost one after the other without a block: with one share of curves, which are then tried
one by one; or on one place, each with another share, which place is then left alone."""


@dataclass(frozen=True)
class FleetRun(Record):
    """What a fleet measured: a summary of each kind of device, and what went wrong on the way."""

    runs: dict[str, RunSummary]
    devices: dict[str, list[str]]
    lost: int
    notes: list[str]


Watch = Callable[[Sequence[Member]], None]
"""Called now and then with all workers."""


@dataclass
class Driver:
    """One call of :func:`sweep_fleet`. Equal devices split the curves, and link curves are measured
    by all of them. A ``resume`` goes on with the folders that are there, with whatever devices
    there are now."""

    suite: Suite
    cluster: Cluster
    opener_on: OpenerOn
    out: Path
    _: KW_ONLY
    resume: bool = False
    budget_s: float | None = None
    timeout_s: float = BLOCK_TIMEOUT_S
    isolate: bool = True
    wait_s: float = 120.0
    watch: Watch = lambda members: None

    def __post_init__(self) -> None:
        self._started = time.monotonic()
        self._members: list[Member] = []
        self._groups: dict[str, DeviceGroup] = {}
        self._kinds: dict[WorkerPlace, str] = {}
        self._failures: dict[WorkerPlace, list[CurveShare | None]] = {}
        self._present: set[WorkerPlace] = set()
        self._notes: list[str] = []
        self._lost, self._looked = 0, -LOOK_S
        self._alone_since: float | None = None
        self._measuring_since: float | None = None  # starting workers comes on top of a budget
        self._stack = ExitStack()

    def run(self) -> FleetRun:
        with self._stack:
            try:
                self._look_for_places()
                if not self._members:
                    raise MeasurementError("the cluster has no device to sweep on")
                while self._members or self._open_groups():
                    self._look_for_places()
                    self._receive()
                    self._deal_out()
                    self.watch(self._members)
                for group in self._groups.values():
                    group.store.fold()
            finally:
                for member in self._members:
                    self.cluster.stop(member.handle)
        return self._summary()

    def _open_groups(self) -> list[DeviceGroup]:
        return [g for g in self._groups.values() if g.queue or not g.is_split]

    def _look_for_places(self) -> None:
        """Start workers on places that have none, where there may be work for them."""
        if time.monotonic() - self._looked < LOOK_S:
            return
        self._looked = time.monotonic()
        waiting = {group.kind: group for group in self._open_groups()}
        taken = {member.place for member in self._members}
        places = [p for p in self.cluster.places() if p not in taken and self._usable(p)]
        self._present = {*places, *taken}
        for place in places:
            if place not in self._kinds:
                wanted = bool(waiting) or not self._groups
            else:
                group = waiting.get(self._kinds[place])
                wanted = group is not None and (
                    not group.is_split or self._next_share(group, place) is not None
                )
            if wanted:
                self._start(place)
        if self._members or not waiting:
            self._alone_since = None
        else:
            self._give_up_waiting(sorted(waiting))

    def _usable(self, place: WorkerPlace) -> bool:
        return len(self._failures.get(place, ())) < TRIES

    def _next_share(self, group: DeviceGroup, place: WorkerPlace) -> CurveShare | None:
        """What a place may take: nothing that a worker there was lost with, unless there is no
        other place for it."""
        others = any(
            self._kinds.get(other) == group.kind and self._usable(other) and other != place
            for other in self._present
        )
        fresh = (s for s in group.queue if place not in s.tried or not others)
        return next(fresh, None)

    def _give_up_waiting(self, waiting: list[str]) -> None:
        """Raise where no device has come for a while."""
        self._alone_since = self._alone_since or time.monotonic()
        wait_s = self.wait_s if self.cluster.grows else 0.0
        if time.monotonic() - self._alone_since >= wait_s:
            raise MeasurementError(
                f"no device of {', '.join(waiting)} is left ({'; '.join(self._notes[-1:])}), and "
                f"none came within {wait_s:g} s; what was measured is in {self.out}: "
                "--resume goes on with it"
            )

    def _start(self, place: WorkerPlace) -> None:
        make = partial(
            Worker, self.opener_on(place), timeout_s=self.timeout_s, isolate=self.isolate,
            processes=self.suite.timing.processes if place.device == "cpu" else 1,
            threads=os.environ.get(THREADS),
        )  # fmt: skip
        handle = self.cluster.start(place, make)
        hello = self.cluster.call(handle, "hello")
        self._members.append(Member(place, handle, deque([hello])))

    def _receive(self) -> None:
        """Take in what the workers answered."""
        heads = {member.pending[0]: member for member in self._members if member.pending}
        if not heads:
            time.sleep(0.0 if self._members else SHOW_S)
            return
        measured: dict[str, list[tuple[Member, ShareStep]]] = {}
        for reference in self.cluster.ready(list(heads), SHOW_S):
            member = heads[reference]
            member.pending.popleft()
            try:
                answer = self.cluster.result(reference)
            except MeasurementError as error:
                self._lose(member, first_line(error))
            else:
                if isinstance(answer, Hello):
                    self._admit(member, answer)
                elif isinstance(answer, ShareStep) and member.group is not None:
                    measured.setdefault(member.group.kind, []).append((member, answer))
        for kind, steps in measured.items():
            self._groups[kind].keep(steps)
            for member, step in steps:
                member.done, member.total = step.done, step.total
                if step.over:
                    self._finish(member, self._groups[kind], step)
                else:
                    member.pending.append(self.cluster.call(member.handle, "step"))

    def _admit(self, member: Member, hello: Hello) -> None:
        """A worker has opened its device: it joins its equals."""
        if hello.version != gacprof.__version__:
            why = f"gacprof is {hello.version} there and {gacprof.__version__} here"
            self._lose(member, why, for_good=True)
            return
        kind = kind_of(hello.environment, hello.timer)
        if kind not in self._groups:
            self._groups[kind] = self._new_group(kind, hello)
        self._kinds[member.place], member.group = kind, self._groups[kind]
        host = member.place.name.partition("/")[0]
        on_gpu = hello.gpu and member.place.device.startswith("cuda")
        member.device = f"{host}/{hello.gpu}" if on_gpu else member.place.name

    def _new_group(self, kind: str, hello: Hello) -> DeviceGroup:
        plans = self.suite.curves(hello.environment.kind)
        store = RunFolder(self.out / kind)
        header = header_of(self.suite, hello.environment, hello.timer)
        self._stack.enter_context(opened(store, header, self.resume))
        group = DeviceGroup(kind, hello, store, plans)
        group.replayed()
        return group

    def _deal_out(self) -> None:
        """Shares to those who have none. A group is split once all workers have said what they
        are, or have had time enough to."""
        starting = any(member.state == "starting" for member in self._members)
        late = time.monotonic() - self._started > self.wait_s
        for group in self._groups.values():
            idle = [m for m in self._members if m.group is group and m.state == "idle"]
            if not group.is_split:
                if (starting and not late) or not idle:
                    continue
                self._split(group, len(idle))
            for member in idle:
                self._begin(group, member)

    def _split(self, group: DeviceGroup, devices: int) -> None:
        kind, name = group.hello.environment.kind, group.hello.environment.name
        costs = {p.key: guessed_s(p, self.suite.timing, kind, name) for p in group.plans}

        def cost(plan: CurvePlan) -> float:
            return costs[plan.key]

        others = {device for _, device in group.counts}
        group.links = link_curves(group.plans, max(devices, len(others)), cost)
        linked = {plan.key for plan in group.links}
        group.queue = split([p for p in group.plans if p.key not in linked], devices, cost)
        group.is_split = True

    def _begin(self, group: DeviceGroup, member: Member) -> None:
        """Give a worker a share, and the link curves once; let it go where nothing is left."""
        share = self._next_share(group, member.place) or CurveShare([])
        if share.plans:
            group.queue.remove(share)
        links = [] if member.device in group.linked else group.links
        if not share.plans and not links:
            self._dismiss(member)
            return
        budget_s = self.budget_s or self.suite.timing.budget_s
        if budget_s is not None:
            self._measuring_since = self._measuring_since or time.monotonic()
            budget_s = max(0.001, budget_s - (time.monotonic() - self._measuring_since))
        known, plans = group.known(share.plans, links, member.device), [*share.plans, *links]
        member.share, member.blocks, member.processes = share, 0, {}
        call, salt = partial(self.cluster.call, member.handle), member.device if links else ""
        begun = call("begin", self.suite.timing, plans, known, budget_s, salt)
        member.pending = deque([begun, *(call("step") for _ in range(AHEAD))])

    def _finish(self, member: Member, group: DeviceGroup, step: ShareStep) -> None:
        group.outcomes |= step.outcomes
        group.linked.add(member.device)
        self._failures.pop(member.place, None)
        member.pending.clear()
        member.share = None

    def _dismiss(self, member: Member) -> None:
        self.cluster.stop(member.handle)
        self._members.remove(member)

    def _lose(self, member: Member, why: str, for_good: bool = False) -> None:
        """A worker is gone, or its device cannot be used."""
        self._lost += member.state != "starting"
        self._notes.append(f"{member.device or member.place.name}: {why}")
        group, share, place = member.group, member.share, member.place
        failed = [] if member.blocks else self._failures.get(place, [])
        if share is None or not any(one is share for one in failed):
            failed = [*failed, share]
        self._failures[place] = failed * TRIES if for_good else failed
        self._dismiss(member)
        self._looked = -LOOK_S  # another one at once, where its node still is
        if group is None or share is None or not share.plans:
            return
        # The share is for another worker, unless that happens again and again: then its curves are
        # tried one by one, and the one that it is failed.
        share.losses = 0 if member.blocks else share.losses + 1
        share.tried = set() if member.blocks else share.tried | {place}
        if share.losses < TRIES:
            group.queue.append(share)
        elif len(share.plans) > 1:
            group.queue += [CurveShare([plan]) for plan in share.plans]
        else:
            points = share.plans[0].points.values()
            group.store.note([PointNote(point, failed=why) for point in points])

    def _summary(self) -> FleetRun:
        runs = {kind: self._summary_of(group) for kind, group in self._groups.items()}
        devices = {kind: sorted({d for _, d in g.counts}) for kind, g in self._groups.items()}
        if not runs:
            why = "; ".join(dict.fromkeys(self._notes)) or "none answered"
            raise MeasurementError(f"no device of the cluster could be opened: {why}")
        return FleetRun(runs, devices, self._lost, list(dict.fromkeys(self._notes)))

    def _summary_of(self, group: DeviceGroup) -> RunSummary:
        measured = {call.point for block in group.blocks() for call in block.calls}
        notes = read_notes(group.store.path)
        outcomes = [group.outcomes.get(p.key, CurveOutcome(True, True)) for p in group.plans]
        return RunSummary(
            group.store.path,
            len(group.plans),
            len(measured),
            len(group.blocks()),
            group.calls,
            sum(bool(note.failed) and point not in measured for point, note in notes.items()),
            time.monotonic() - self._started,
            sum(outcome.undecided for outcome in outcomes),
            sum(outcome.unfinished for outcome in outcomes),
        )


def sweep_fleet(
    suite: Suite, cluster: Cluster, opener_on: OpenerOn, out: str | Path, **how: Any
) -> FleetRun:
    """Measure every curve of ``suite`` on each kind of device of ``cluster``, a run folder a kind
    in ``out``; ``how`` are the options of :class:`Driver`.

    Raises :class:`SuiteError` and :class:`MeasurementError`.
    """
    return Driver(suite, cluster, opener_on, Path(out), **how).run()
