"""A curve's slots on a GPU: warmed up, traced, captured; then blocks of one launch each.

The order is fixed by what each step needs. Calls are warmed up first: their rough time decides how
many go into a graph, and the arenas reach their final size. Kernel names come from one trace of
all slots before any capture, since tracers and graphs get in each other's way. A block launches
every slot once and waits once, at its end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from gacprof import operators
from gacprof.core.errors import MeasurementError
from gacprof.core.tasks import no_collection
from gacprof.devices.cuda_graph import GRAPH, GraphRun, LaunchedRun, TimedRun, Work, reason
from gacprof.devices.device import BlockTimes, Session, Slot, TimedCall
from gacprof.devices.kineto import span_us
from gacprof.devices.memory import BoundCall
from gacprof.operators.base import operands_from

if TYPE_CHECKING:
    from gacprof.devices.cuda import CudaDevice
    from gacprof.operators.base import Prepared

WARM_UP_CALLS = 3
ROUGH_CALLS = 4
TARGET_US = 150.0
"""Of all calls of a run: events step by half a microsecond, a third of a per cent of it."""
MOST_CALLS = 64
"""Of a run, however short they are."""
MOST_LAUNCHED = 8
"""Calls of a run that the host launches: it must keep ahead of the device."""
NODE_BUDGET, DEVICE_NODES = 48_000, 500_000
"""Kernels in all graphs of a session, under 50,000 with those captured twice; and in those of all
open sessions, since each takes about a kilobyte of the device's memory. A session takes at most
half of what is left."""
NODES_BESIDE, ASSUMED_KERNELS = 6, 2
"""Nodes of a graph that are no calls, and kernels of a call that was not traced."""
HEAVY_INTENSITY = 100.0
"""Operations a byte: from about half the ridge of the chips in :mod:`.roof` on, arithmetic at
full speed may reach the power cap, and then what runs before a call decides its clock. Such calls
are followed by as long a rest."""
TWICE_EVERY = 20
"""One slot in so many is captured with two numbers of calls."""


@dataclass(frozen=True)
class Ready:
    """A slot that can be called. ``bind`` gives its next call, of ``us`` microseconds or so, which
    takes the host ``enqueue_us``; ``calls`` are how many of them a run should hold."""

    slot: Slot
    bind: Callable[[], BoundCall]
    us: float
    enqueue_us: float
    calls: int

    @property
    def cold(self) -> bool:
        return self.slot.point.flag.get("cache") == "cold"

    def precision(self) -> None:
        operators.set_precision(self.slot.point)


def prepare(device: CudaDevice, slot: Slot, reuse_bytes: int) -> Ready:
    """Warm the slot's call up, on operands that any others may share; then give it its own.

    Raises :class:`MeasurementError` or ``RuntimeError`` for a slot that does not work.
    """
    point = slot.point
    operator = operators.get(point.operator)
    device.check_memory(operator.bytes_moved(point))
    operators.set_precision(point)
    with operands_from(device.arenas.view):
        prepared = operator.prepare(point, device.torch_device)
    enqueue_us = min(_enqueued_us(device, prepared) for _ in range(WARM_UP_CALLS))
    cold = point.flag.get("cache") == "cold"
    bind = device.arenas.place(prepared, slot.replicate, cold, device.cold_bytes)
    us = _rough_us(device, bind(), enqueue_us, cold)
    calls = max(1, min(MOST_CALLS, round(TARGET_US / us)))
    if cold:
        weights = sum(w.nbytes for i in prepared.weights if (w := prepared.operands[i]) is not None)
        calls = max(1, min(calls, device.most_cold_bytes // max(1, weights)))
        own = calls * weights if calls > 1 else 0
        reuse = max(device.cold_bytes, own, min(reuse_bytes, device.most_cold_bytes))
        bind = device.arenas.place(prepared, slot.replicate, cold, reuse)
    return Ready(slot, bind, us, enqueue_us, calls)


def _enqueued_us(device: CudaDevice, call: Prepared) -> float:
    """How long the host takes to enqueue a call. Waits for the device, so that a call that fails
    there is known for the culprit."""
    start = time.perf_counter_ns()
    call()
    enqueued = time.perf_counter_ns()
    device.synchronise()
    return (enqueued - start) / 1e3


def _rough_us(device: CudaDevice, call: BoundCall, enqueue_us: float, cold: bool) -> float:
    """About how long a call takes: a cold one once, since a second would find its weights."""
    calls = 1 if cold else ROUGH_CALLS
    run = LaunchedRun(Work((call,) * calls, device.flush if cold else call), enqueue_us)
    run.launch()
    device.synchronise()
    return max(run.total_us() / calls, 1e-3)


class CudaSession(Session):
    """``half_duty`` are the slots that rest as long as they work; ``traced_us`` is what a tracer
    saw one call take by itself, by slot, beside which a call in a graph may be faster."""

    def __init__(self, device: CudaDevice, slots: Sequence[Slot], reuse_bytes: int) -> None:
        import torch

        self._device = device
        self._failures: dict[int, str] = {}
        self.failed: Mapping[int, str] = self._failures
        self.half_duty: set[int] = set()
        self.traced_us: dict[int, float] = {}
        self._remarks: dict[int, str] = {}
        self._names: dict[int, tuple[str, ...]] = {}
        self._ready: dict[int, Ready] = {}
        self._runs: dict[int, TimedRun] = {}
        self._halves: dict[int, TimedRun] = {}
        self._constants_us: list[float] = []
        self._spoilt = False
        self._nodes = 0
        self._pool: Any = torch.cuda.graph_pool_handle()
        with device.active(), no_collection():
            self._prepare_all(slots, reuse_bytes)
            if not self._spoilt:
                self._trace()
                self._capture_all()

    # --- preparing

    def _prepare_all(self, slots: Sequence[Slot], reuse_bytes: int) -> None:
        for place, slot in enumerate(slots):
            try:
                self._ready[place] = prepare(self._device, slot, reuse_bytes)
            except Exception as error:  # an operator may raise anything
                self._fail(place, error)
                if self._spoilt:
                    return

    def _fail(self, place: int, error: BaseException) -> None:
        """Note the reason and free what the call had allocated. A broken context is the last
        failure: nothing is known of the slots after it."""
        import torch

        self._failures[place] = reason(error)
        if isinstance(error, torch.cuda.OutOfMemoryError):
            torch.cuda.empty_cache()
        self._spoilt = not self._device.usable()

    def _trace(self) -> None:
        """Names of kernels, of points that no earlier session has traced; without them a curve
        is measured all the same."""

        def once(ready: Ready) -> Callable[[], object]:
            call = ready.bind()

            def run() -> None:
                ready.precision()
                call()

            return run

        known = self._device.traced
        points = {ready.slot.point: ready for ready in self._ready.values()}
        unknown = {point: ready for point, ready in points.items() if point not in known}
        found = self._device.tracer.typical_calls([once(ready) for ready in unknown.values()])
        known.update(zip(unknown, found, strict=False))
        for place, ready in self._ready.items():
            if traced := known.get(ready.slot.point):
                self._names[place] = tuple(event.name for event in traced)
                self.traced_us[place] = span_us(traced)

    def _capture_all(self) -> None:
        budget = min(NODE_BUDGET, (DEVICE_NODES - self._device.open_nodes) // 2)
        nodes = budget // max(1, len(self._ready)) - NODES_BESIDE
        for number, (place, ready) in enumerate(self._ready.items()):
            kernels = len(self._names.get(place, ())) or ASSUMED_KERNELS
            calls = max(1, min(ready.calls, nodes // kernels))
            try:
                self._runs[place] = self._run(place, ready, calls)
                self._nodes += (taken := kernels * calls + NODES_BESIDE)
                self._device.open_nodes += taken
                twice = isinstance(self._runs[place], GraphRun) and calls > 1 and not ready.cold
                if number % TWICE_EVERY == 0 and twice:  # what a graph adds is the same for both
                    self._halves[place] = self._run(place, ready, calls // 2)
            except Exception as error:
                self._fail(place, error)
                if self._spoilt:
                    return

    def _run(self, place: int, ready: Ready, calls: int) -> TimedRun:
        """The slot's run in a graph, or launched by the host where that is asked for or all that
        works."""
        ready.precision()
        if self._device.timer == GRAPH:
            try:
                work = self._work(place, ready, calls)
                return self._tried(GraphRun(work, self._pool, self._device.index))
            except Exception as error:
                why_not = reason(error)
                if not self._device.falls_back or not self._device.usable():
                    raise MeasurementError(f"no CUDA graph can capture it: {why_not}") from None
                self._remarks[place] = f"timed by events, no CUDA graph can capture it: {why_not}"
        work = self._work(place, ready, min(calls, MOST_LAUNCHED))
        return self._tried(LaunchedRun(work, ready.enqueue_us))

    def _tried(self, run: TimedRun) -> TimedRun:
        """Launched once: the first launch uploads a graph, and what goes wrong is this slot's."""
        run.launch()
        self._device.synchronise()
        run.total_us()
        return run

    def _work(self, place: int, ready: Ready, calls: int) -> Work:
        bound = tuple(ready.bind() for _ in range(calls))
        point = ready.slot.point
        operator = operators.get(point.operator)
        heavy = operator.flops(point) >= HEAVY_INTENSITY * operator.bytes_moved(point)
        if heavy:
            self.half_duty.add(place)
        before = self._device.flush if ready.cold else bound[0]
        return Work(bound, before, calls * ready.us if heavy else 0.0)

    # --- calling

    def block(self, order: Sequence[int]) -> BlockTimes:
        """Launch each of these slots once, in this order, and wait once.

        Raises :class:`MeasurementError` where the device fails: which call did it is not known.
        """
        if self._spoilt:
            raise MeasurementError("the GPU's context is spoilt: open the device anew")
        failed = {slot: self._failures[slot] for slot in order if slot in self._failures}
        telemetry = self._device.telemetry
        slowed, begun = telemetry.slowed_ns(), time.monotonic()
        with self._device.active(), no_collection():
            try:
                for slot in order[:1]:  # unrecorded: its events are those of the second launch
                    self._launch(slot, failed)
                for slot in order:
                    self._launch(slot, failed)
                self._device.synchronise()
            except RuntimeError as error:
                self._spoilt = not self._device.usable()
                raise MeasurementError(f"the GPU failed during a block: {error}") from None
            calls = tuple(self._timed(slot) for slot in order if slot not in failed)
        return BlockTimes(
            calls,
            failed,
            throttled=telemetry.slowed_since(slowed, time.monotonic() - begun),
            sm_clock_mhz=telemetry.sm_clock_mhz(),
            **telemetry.reading(),
        )

    def _launch(self, slot: int, failed: dict[int, str]) -> None:
        """A slot that the host launches may find no memory; then the block goes on without it."""
        import torch

        if slot in failed:
            return
        try:
            self._ready[slot].precision()
            self._runs[slot].launch()
            if slot in self._halves:
                self._halves[slot].launch()
        except torch.cuda.OutOfMemoryError as error:
            failed[slot] = reason(error)

    def _timed(self, slot: int) -> TimedCall:
        run, half = self._runs[slot], self._halves.get(slot)
        total = run.total_us()
        if half is not None:
            each = (total - half.total_us()) / (run.calls - half.calls)
            self._constants_us.append(total - run.calls * each)
        return TimedCall(slot, total / run.calls)

    # --- reporting

    def kernels(self) -> Mapping[int, tuple[str, ...]]:
        return self._names

    def remarks(self) -> Mapping[int, str]:
        """Why slots were timed by events, and why kernels have no names."""
        why_not = self._device.tracer.why_not
        unnamed = f"kernels have no names: {why_not}" if why_not else ""
        each = {place: (self._remarks.get(place), unnamed) for place in self._runs}
        return {place: "; ".join(filter(None, said)) for place, said in each.items() if any(said)}

    @property
    def constant_us(self) -> float | None:
        """What a run's events and its first call add to all its calls together; None before the
        first block. A call's own latency is its time less this, divided by its run's calls."""
        return median(self._constants_us) if self._constants_us else None

    def close(self) -> None:
        """Give back graphs and what they allocated: another session has a pool of its own."""
        import torch

        for run in (*self._runs.values(), *self._halves.values()):
            run.close()
        for held in (self._runs, self._halves, self._ready):
            held.clear()
        self._device.open_nodes -= self._nodes
        self._nodes = 0
        torch.cuda.empty_cache()
