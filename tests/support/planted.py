"""A planted device: multiples of 8 are served well, everything else 40 % slower."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from recorded_device import RecordedDevice

from gacprof.checkpoint import Inventory, scan
from gacprof.cliffmap import CliffMap
from gacprof.cliffmap.build import build_map
from gacprof.core.points import Block, Environment, Point, PointNote
from gacprof.sweeping import Suite
from gacprof.sweeping.engine import SweepEngine
from gacprof.sweeping.for_checkpoint import suite_for
from gacprof.sweeping.store import JOURNAL, PARQUET, RunFolder

TOKENS = {1: 1.0, 64: 1.0}
FEW = {"blocks": 6, "most_blocks": 6}
"""Enough blocks: the device is exact."""
PLANTED = Environment("recorded", "planted device", "none", {}, {"planted": "1"})


def planted_latency(point: Point) -> float:
    """µs: work plus a launch, and 40 % more where a dim is no multiple of 8."""
    if point.operator != "linear":
        return 50.0
    m, n, k = (point.dim[axis] for axis in "MNK")
    slow = 1.4 if n % 8 or k % 8 else 1.0
    return (2.0 + m * n * k / 1e6) * slow


def planted_device() -> RecordedDevice:
    return RecordedDevice(planted_latency, PLANTED)


def planted_map_of(
    checkpoint: Inventory | Path,
    tokens: Iterable[int] = TOKENS,
    latency: Callable[[Point], float] = planted_latency,
    **asked: Any,
) -> CliffMap:
    """The device's map around a checkpoint's own sizes; ``asked`` goes to ``suite_for``."""
    inventory = checkpoint if isinstance(checkpoint, Inventory) else scan(checkpoint)
    return swept_map(suite_for(inventory, sorted(tokens), timing=FEW, **asked), latency)


class _Held(list[Block]):
    """Where a sweep's engine leaves its blocks: no folder is written, nor read again."""

    def __init__(self) -> None:
        self.notes: dict[Point, PointNote] = {}

    def append(self, *blocks: Block) -> None:
        self.extend(blocks)

    def note(self, notes: Iterable[PointNote]) -> None:
        self.notes |= {note.point: note for note in notes}


def swept_map(suite: Suite, latency: Callable[[Point], float] = planted_latency) -> CliffMap:
    """The map of what a sweep of the device measures."""
    held = _Held()
    device = RecordedDevice(latency, PLANTED)
    for _ in SweepEngine(suite.timing, device, suite.curves(PLANTED.kind), held).steps():
        pass
    return build_map(
        held, PLANTED, name="planted", point_notes=held.notes, tolerance=suite.timing.tolerance,
        suite=suite.name, suite_hash=suite.hash,
    )  # fmt: skip


def write_run(
    path: Path, header: dict[str, Any], blocks: Sequence[Block], notes: Mapping[Point, PointNote]
) -> None:
    """A run folder of these blocks, in place of one that is there."""
    store = RunFolder(path)
    for name in (PARQUET, JOURNAL):
        (path / name).unlink(missing_ok=True)
    store.write_header(header)
    store.append(*blocks)
    store.note(notes.values())
    store.fold()
    store.close()
