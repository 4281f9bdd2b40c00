"""Slots on a GPU: warmed up and roughly timed, captured, and kept for later sessions."""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gacprof import operators
from gacprof.core.points import Point
from gacprof.devices.cuda_graph import Graphs, GraphWork, LaunchedRun, TimedRun
from gacprof.devices.device import Slot
from gacprof.devices.gpu import GpuDevice
from gacprof.devices.memory import BoundCall, Placement
from gacprof.operators.base import operands_from

if TYPE_CHECKING:
    from gacprof.operators.base import Prepared

Key = tuple[Slot, int, int]
"""A slot, the reuse distance of its cold weights (bytes), and how many equal slots precede it."""
Curve = tuple[Hashable, ...]
"""All that the points of a curve have in common."""

WARM_UP_CALLS = 3
ROUGH_CALLS = 4
TARGET_US, LONGEST_US = 150.0, 1_000.0
"""Of all calls of a run: events step by half a microsecond, a third of a per cent of the first. A
curve's longest run takes at most the second, unless a single call does."""
MOST_CALLS = 64
"""Of a run, however short they are."""
HEAVY_INTENSITY = 100.0
"""Operations a byte: from about half the ridge of the chips in :mod:`.datasheet` on, arithmetic at
full speed may reach the power cap, and then what runs before a call decides its clock. Such calls
are followed by as long a rest."""


@dataclass(frozen=True)
class Ready:
    """A slot that can be called: one call takes the device ``us`` microseconds or so and the host
    ``enqueue_us``. ``most_calls`` are what a run may hold: cold ones must all read other weights,
    of ``weight_bytes`` at most."""

    slot: Slot
    placement: Placement
    us: float
    enqueue_us: float
    weight_bytes: int
    most_calls: int

    @property
    def cold(self) -> bool:
        return self.slot.point.flag.get("cache") == "cold"

    @property
    def heavy(self) -> bool:
        """Whether its arithmetic may reach the power cap."""
        point = self.slot.point
        operator = operators.get(point.operator)
        return operator.flops(point) >= HEAVY_INTENSITY * operator.bytes_moved(point)

    def precision(self) -> None:
        operators.set_precision(self.slot.point)


@dataclass(frozen=True)
class Captured:
    """A slot that can be launched, in runs of ``calls`` calls, fewer where the host launches them.
    ``growths`` says in which memory the operands lie."""

    ready: Ready
    run: TimedRun
    calls: int
    remark: str
    growths: int

    @property
    def current(self) -> bool:
        """Whether calls bound now would find their operands at the same addresses."""
        return self.growths == self.ready.placement.growths


class Captures:
    """What the sessions of a device have captured, closed ones too."""

    def __init__(self, graphs: Graphs) -> None:
        self._graphs = graphs
        self.found: dict[Key, Captured] = {}
        self._calls: dict[Curve, list[int]] = {}
        """Of the runs captured, by curve."""
        self.open_sessions = 0

    def open_with(self, keys: Mapping[int, Key]) -> dict[int, Captured]:
        """What is captured already of a new session's slots. With none of it, and no other session
        open, all that was captured is forgotten."""
        found = {i: self.found[key] for i, key in keys.items() if key in self.found}
        if not found and not self.open_sessions:
            self.forget()
        self.open_sessions += 1
        return found

    def keep(self, key: Key, made: Captured) -> None:
        self.found[key] = made
        for curve in _curves(key[0].point):
            self._calls.setdefault(curve, []).append(made.calls)

    def calls_on_curve(self, slots: Sequence[Slot]) -> list[int]:
        """How many calls the runs hold that were captured of these slots' curve, whichever of
        their dims it is over: of most runs, and of more than one, which is another curve's."""
        shared = (_curves(slot.point) for slot in slots)
        curves = set.intersection(*map(set, shared)) if slots else set()
        found = [calls for curve in curves if len(calls := self._calls.get(curve, [])) > 1]
        return max(found, key=len, default=[])

    def forget(self) -> None:
        """Give back all graphs."""
        self.found.clear()
        self._calls.clear()
        self._graphs.reset()


def _curves(point: Point) -> list[Curve]:
    """The curves that a point lies on: one over each of its dims, all else equal."""
    what = (point.operator, point.dtype, point.flags)
    return [(*what, name, tuple(d for d in point.dims if d[0] != name)) for name, _ in point.dims]


def prepare(gpu: GpuDevice, slot: Slot) -> Ready:
    """Warm the slot's call up, on operands that any others may share; then give it its own.

    Raises :class:`MeasurementError` or ``RuntimeError`` for a slot that does not work.
    """
    point = slot.point
    operator = operators.get(point.operator)
    gpu.check_memory(operator.bytes_moved(point))
    operators.set_precision(point)
    with operands_from(gpu.arenas.view):
        prepared = operator.prepare(point, gpu.torch_device)
    enqueue_us = min(_enqueued_us(gpu, prepared) for _ in range(WARM_UP_CALLS))
    cold = point.flag.get("cache") == "cold"
    placement = gpu.arenas.place(prepared, slot.replicate, cold, gpu.cold_bytes)
    us = _rough_us(gpu, placement.bind(), enqueue_us, cold)
    weights = [w.nbytes for i in prepared.weights if (w := prepared.operands[i]) is not None]
    most = gpu.most_cold_bytes // max(1, sum(weights)) if cold else MOST_CALLS
    return Ready(
        slot, placement, us, enqueue_us, max(weights, default=0),
        max(1, min(MOST_CALLS, most)),
    )  # fmt: skip


def calls_of_runs(us: Sequence[float], most: int = MOST_CALLS) -> int:
    """How many calls each run of a curve holds, ``most`` at most, of slots that take about so long:
    the same number for all. A run's events and its first call add a microsecond or two, so that
    runs of one and of two calls would differ by their number. As many as the shorter calls need,
    and no more than the longest allow."""
    by_time = sorted(us)
    wanted = round(TARGET_US / by_time[len(by_time) // 4])
    return max(1, int(min(wanted, LONGEST_US / by_time[-1], most)))


def _enqueued_us(gpu: GpuDevice, call: Prepared) -> float:
    """How long the host takes to enqueue a call. Waits for the device, so that a call that fails
    there is known for the culprit."""
    start = time.perf_counter_ns()
    call()
    enqueued = time.perf_counter_ns()
    gpu.synchronise()
    return (enqueued - start) / 1e3


def _rough_us(gpu: GpuDevice, call: BoundCall, enqueue_us: float, cold: bool) -> float:
    """About how long a call takes: a cold one once, since a second would find its weights."""
    calls = 1 if cold else ROUGH_CALLS
    run = LaunchedRun(GraphWork((call,) * calls, gpu.flush if cold else call), enqueue_us)
    run.launch()
    gpu.synchronise()
    return max(run.total_us() / calls, 1e-3)
