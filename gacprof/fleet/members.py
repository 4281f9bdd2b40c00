"""The workers of a sweep, and what equal ones among them have measured together."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from gacprof.core.points import Block, PointNote
from gacprof.fleet.cluster import Place
from gacprof.fleet.groups import Share
from gacprof.fleet.worker import Hello, Step
from gacprof.sweeping.engine import Outcome
from gacprof.sweeping.store import RunFolder, read_blocks
from gacprof.sweeping.suite import CurvePlan, curve_key


@dataclass
class Member:
    """A worker and what it is at. ``device`` is its name in the run folder."""

    place: Place
    handle: Any
    pending: deque[Any]
    group: Group | None = None
    device: str = ""
    share: Share | None = None
    processes: dict[int, int] = field(default_factory=dict)
    blocks: int = 0
    done: float = 0.0
    total: float = 0.0
    state: str = "starting"


@dataclass
class Group:
    """Devices of one kind, their run folder, and the curves that none of them has yet."""

    kind: str
    hello: Hello
    store: RunFolder
    plans: list[CurvePlan]
    queue: list[Share] = field(default_factory=list)
    links: list[CurvePlan] = field(default_factory=list)
    linked: set[str] = field(default_factory=set)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    counts: dict[tuple[str, str], int] = field(default_factory=dict)
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
        key = curve_key(block.calls[0].point, block.axis), block.device
        self.counts[key] = self.counts.get(key, 0) + 1
        self.calls += len(block.calls)

    def keep(self, measured: Iterable[tuple[Member, Step]]) -> None:
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
