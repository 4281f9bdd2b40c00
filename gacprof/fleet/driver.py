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
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gacprof
from gacprof.core.errors import MeasurementError, first_line
from gacprof.core.files import Record
from gacprof.core.points import PointNote
from gacprof.devices.worker import BLOCK_TIMEOUT_S
from gacprof.fleet.cluster import Cluster, GoneError, OpenerOn, Place
from gacprof.fleet.members import Group, Member, Share, kind_of, link_curves, split
from gacprof.fleet.worker import THREADS, Hello, Step, Worker
from gacprof.sweeping.engine import Outcome, RunSummary
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


class Driver:
    """One call of :func:`sweep_fleet`."""

    def __init__(
        self,
        suite: Suite,
        cluster: Cluster,
        opener_on: OpenerOn,
        out: Path,
        *,
        resume: bool = False,
        budget_s: float | None = None,
        timeout_s: float = BLOCK_TIMEOUT_S,
        isolate: bool = True,
        wait_s: float = 120.0,
        watch: Watch = lambda members: None,
    ) -> None:
        self._suite, self._cluster, self._opener_on, self._out = suite, cluster, opener_on, out
        self._resume, self._timeout_s, self._isolate = resume, timeout_s, isolate
        self._budget_s, self._wait_s, self._watch = budget_s, wait_s, watch
        self._started = time.monotonic()
        self._members: list[Member] = []
        self._groups: dict[str, Group] = {}
        self._kinds: dict[Place, str] = {}
        self._failures: dict[Place, list[Share | None]] = {}
        self._present: set[Place] = set()
        self._notes: list[str] = []
        self._lost, self._looked = 0, -LOOK_S
        self._alone_since: float | None = None
        self._measuring_since: float | None = None  # starting workers comes on top of a budget
        self._stack = ExitStack()

    def run(self) -> FleetRun:
        with self._stack, self._stopping():
            self._look_for_places()
            if not self._members:
                raise MeasurementError("the cluster has no device to sweep on")
            while self._members or self._open_groups():
                self._look_for_places()
                self._hear()
                self._deal_out()
                self._watch(self._members)
            for group in self._groups.values():
                group.store.fold()
        return self._summary()

    @contextmanager
    def _stopping(self) -> Iterator[None]:
        try:
            yield
        finally:
            for member in self._members:
                self._cluster.stop(member.handle)

    def _open_groups(self) -> list[Group]:
        return [g for g in self._groups.values() if g.queue or not g.is_split]

    def _look_for_places(self) -> None:
        """Start workers on places that have none, where there may be work for them."""
        if time.monotonic() - self._looked < LOOK_S:
            return
        self._looked = time.monotonic()
        waiting = {group.kind: group for group in self._open_groups()}
        taken = {member.place for member in self._members}
        places = [p for p in self._cluster.places() if p not in taken and self._usable(p)]
        self._present = {*places, *taken}
        for place in places:
            kind = self._kinds.get(place)
            group = waiting.get(kind or "")
            if kind is None:
                wanted = bool(waiting) or not self._groups
            else:
                wanted = group is not None and (
                    not group.is_split or self._next_share(group, place) is not None
                )
            if wanted:
                self._start(place)
        if self._members or not waiting:
            self._alone_since = None
        else:
            self._give_up_waiting(sorted(waiting))

    def _usable(self, place: Place) -> bool:
        return len(self._failures.get(place, ())) < TRIES

    def _next_share(self, group: Group, place: Place) -> Share | None:
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
        wait_s = self._wait_s if self._cluster.grows else 0.0
        if time.monotonic() - self._alone_since >= wait_s:
            raise MeasurementError(
                f"no device of {', '.join(waiting)} is left ({'; '.join(self._notes[-1:])}), and "
                f"none came within {wait_s:g} s; what was measured is in {self._out}: "
                "--resume goes on with it"
            )

    def _start(self, place: Place) -> None:
        make = partial(
            Worker,
            self._opener_on(place),
            timeout_s=self._timeout_s,
            processes=self._suite.timing.processes if place.device == "cpu" else 1,
            isolate=self._isolate,
            threads=os.environ.get(THREADS),
        )
        handle = self._cluster.start(place, make)
        hello = self._cluster.call(handle, "hello")
        self._members.append(Member(place, handle, deque([hello])))

    def _hear(self) -> None:
        """Take in what the workers answered."""
        heads = {member.pending[0]: member for member in self._members if member.pending}
        if not heads:
            time.sleep(0.0 if self._members else SHOW_S)
            return
        measured: dict[str, list[tuple[Member, Step]]] = {}
        for reference in self._cluster.ready(list(heads), SHOW_S):
            member = heads[reference]
            member.pending.popleft()
            try:
                answer = self._cluster.result(reference)
            except GoneError as gone:
                self._lose(member, str(gone))
            except MeasurementError as error:
                self._lose(member, first_line(error))
            else:
                if isinstance(answer, Hello):
                    self._admit(member, answer)
                elif isinstance(answer, Step) and member.group is not None:
                    measured.setdefault(member.group.kind, []).append((member, answer))
        for kind, steps in measured.items():
            self._groups[kind].keep(steps)
            for member, step in steps:
                self._go_on(member, step)

    def _go_on(self, member: Member, step: Step) -> None:
        """Ask for the next batch, now that the last one is on disk."""
        member.done, member.total = step.done, step.total
        if step.over:
            self._finish(member, step)
        else:
            member.pending.append(self._cluster.call(member.handle, "step"))

    def _admit(self, member: Member, hello: Hello) -> None:
        """A worker has opened its device: it joins its equals."""
        if hello.version != gacprof.__version__:
            why = f"gacprof is {hello.version} there and {gacprof.__version__} here"
            self._lose(member, why, for_good=True)
            return
        kind = kind_of(hello.environment, hello.timer)
        if kind not in self._groups:
            self._groups[kind] = self._new_group(kind, hello)
        self._kinds[member.place] = kind
        member.group, member.state = self._groups[kind], "idle"
        host = member.place.name.partition("/")[0]
        on_gpu = hello.gpu and member.place.device.startswith("cuda")
        member.device = f"{host}/{hello.gpu}" if on_gpu else member.place.name

    def _new_group(self, kind: str, hello: Hello) -> Group:
        plans = self._suite.curves(hello.environment.kind)
        store = RunFolder(self._out / kind)
        header = header_of(self._suite, hello.environment, hello.timer)
        self._stack.enter_context(opened(store, header, self._resume))
        group = Group(kind, hello, store, plans)
        group.replayed()
        return group

    def _deal_out(self) -> None:
        """Shares to those who have none. A group is split once all workers have told what they
        are, or have had time enough to."""
        starting = any(member.state == "starting" for member in self._members)
        late = time.monotonic() - self._started > self._wait_s
        for group in self._groups.values():
            idle = [m for m in self._members if m.group is group and m.state == "idle"]
            if not group.is_split:
                if (starting and not late) or not idle:
                    continue
                self._split(group, len(idle))
            for member in idle:
                self._begin(group, member)

    def _split(self, group: Group, devices: int) -> None:
        environment, timing = group.hello.environment, self._suite.timing
        costs = {p.key: guessed_s(p, timing, environment.kind, environment.name)
                 for p in group.plans}  # fmt: skip

        def cost(plan: CurvePlan) -> float:
            return costs[plan.key]

        others = {device for _, device in group.counts}
        group.links = link_curves(group.plans, max(devices, len(others)), cost)
        linked = {plan.key for plan in group.links}
        group.queue = split([p for p in group.plans if p.key not in linked], devices, cost)
        group.is_split = True

    def _begin(self, group: Group, member: Member) -> None:
        """Give a worker a share, and the link curves once; let it go where nothing is left."""
        share = self._next_share(group, member.place)
        if share is None:
            share = Share([])
        else:
            group.queue.remove(share)
        links = [] if member.device in group.linked else group.links
        if not share.plans and not links:
            self._dismiss(member)
            return
        budget_s = self._budget_s or self._suite.timing.budget_s
        if budget_s is not None:
            self._measuring_since = self._measuring_since or time.monotonic()
            budget_s = max(0.001, budget_s - (time.monotonic() - self._measuring_since))
        known = group.known(share.plans, links, member.device)
        plans = [*share.plans, *links]
        salt = member.device if links else ""
        member.share, member.state, member.blocks = share, "measuring", 0
        member.processes = {}
        call = partial(self._cluster.call, member.handle)
        begun = call("begin", self._suite.timing, plans, known, budget_s, salt)
        member.pending = deque([begun, *(call("step") for _ in range(AHEAD))])

    def _finish(self, member: Member, step: Step) -> None:
        assert member.group is not None
        member.group.outcomes |= step.outcomes
        member.group.linked.add(member.device)
        self._failures.pop(member.place, None)
        member.pending.clear()
        member.share, member.state = None, "idle"

    def _dismiss(self, member: Member) -> None:
        self._cluster.stop(member.handle)
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
        if group is not None and share is not None and share.plans:
            self._put_back(group, share, place, why, progressed=member.blocks > 0)

    def _put_back(
        self, group: Group, share: Share, place: Place, why: str, progressed: bool
    ) -> None:
        """A share whose worker was lost is for another one, unless that happens again and again:
        then its curves are tried one by one, and the one that it is failed."""
        if progressed:
            share.losses, share.tried = 0, set()
        else:
            share.losses, share.tried = share.losses + 1, share.tried | {place}
        if share.losses < TRIES:
            group.queue.append(share)
        elif len(share.plans) > 1:
            group.queue += [Share([plan]) for plan in share.plans]
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

    def _summary_of(self, group: Group) -> RunSummary:
        measured = {call.point for block in group.blocks() for call in block.calls}
        notes = read_notes(group.store.path)
        outcomes = [group.outcomes.get(p.key, Outcome(True, True)) for p in group.plans]
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
    """Measure every curve of ``suite`` on each kind of device of ``cluster``.

    Equal devices split the curves, and link curves are measured by all of them. Each kind has its
    run folder in ``out``; ``how`` are the options of :class:`Driver`. A ``resume`` goes on with the
    folders that are there, with whatever devices there are now.

    Raises :class:`SuiteError` and :class:`MeasurementError`.
    """
    return Driver(suite, cluster, opener_on, Path(out), **how).run()
