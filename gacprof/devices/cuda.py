"""A CUDA GPU as a device to sweep: slots are captured, then blocks launch each of them once.

The order is fixed by what each step needs. Calls are warmed up first, the largest before all: their
rough times decide how many go into a graph, and the arenas reach their final size. Kernel names
come from one trace of all slots before any capture, since tracers and graphs get in each other's
way. A block launches every slot once and waits once, at its end. What was captured stays the
device's: a later session of the same slots takes it over, and one of further slots of the same
curve captures runs of as many calls.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median_low
from typing import TypeVar

from gacprof import operators
from gacprof.core.errors import MeasurementError
from gacprof.core.points import Point
from gacprof.core.tasks import no_collection
from gacprof.devices.cuda_graph import GRAPH, GraphRun, GraphWork, LaunchedRun, TimedRun, reason
from gacprof.devices.cuda_slot import Captured, Captures, Key, Ready, calls_of_runs, prepare
from gacprof.devices.device import BlockTimes, Session, Slot, TimedCall
from gacprof.devices.gpu import AUTO, GpuDevice

T = TypeVar("T")

MOST_LAUNCHED = 8
"""Calls of a run that the host launches: it must keep ahead of the device."""
NODE_BUDGET, DEVICE_NODES = 48_000, 500_000
"""Kernels in all graphs of a session; and in all graphs of the device, since each takes about a
kilobyte of its memory. A session takes at most half of what is left."""
OTHER_NODES, ASSUMED_KERNELS = 6, 2
"""Nodes of a graph that are no calls, and kernels of a call that was not traced."""


class CudaDevice(GpuDevice):
    """A GPU with sessions. What one has captured, a later one of the same slots takes over."""

    def __init__(self, index: int = 0, timer: str = AUTO) -> None:
        super().__init__(index, timer)
        self.captures = Captures(self.graphs)
        self.names: dict[Point, tuple[str, ...]] = {}
        """Of the kernels of points, traced here or by another process."""

    def session(self, slots: Sequence[Slot], reuse_bytes: int = 0) -> Session:
        return CudaSession(self, slots, reuse_bytes)

    def learn(self, kernels: Mapping[Point, tuple[str, ...]]) -> None:
        self.names.update(kernels)

    def close(self) -> None:
        super().close()
        self.captures.forget()


class CudaSession(Session):
    """A curve's slots, captured."""

    def __init__(self, device: CudaDevice, slots: Sequence[Slot], reuse_bytes: int) -> None:
        self._device, self._slots, self._reuse_bytes = device, slots, reuse_bytes
        self._failures: dict[int, str] = {}
        self.failed: Mapping[int, str] = self._failures
        self._names: dict[int, tuple[str, ...]] = {}
        self._context_lost = self._closed = False
        self._keys = _keys(slots, reuse_bytes)
        self._captured = device.captures.open_with(self._keys)
        with device.active(), no_collection():
            ready = self._prepare_all()
            if not self._context_lost:
                self._capture_all(ready)

    # --- preparing

    def _prepare_all(self) -> dict[int, Ready]:
        """Of slots that no earlier session has captured, the largest first: with its operands the
        arenas grow for the last time."""
        size = {
            place: operators.get(slot.point.operator).bytes_moved(slot.point)
            for place, slot in enumerate(self._slots)
            if place not in self._captured
        }
        ready: dict[int, Ready] = {}
        for place in sorted(size, key=lambda i: -size[i]):
            made = self._guarded(place, partial(prepare, self._device, self._slots[place]))
            if self._context_lost:
                return {}
            if made is not None:
                ready[place] = made
        return dict(sorted(ready.items()))

    def _guarded(self, place: int, attempt: Callable[[], T]) -> T | None:
        """What the attempt gives, made twice where memory is short; None where it fails.

        A broken context is the last failure: nothing is known of the slots after it.
        """
        import torch

        try:
            try:
                return attempt()
            except torch.cuda.OutOfMemoryError:
                torch.cuda.empty_cache()
                return attempt()
        except Exception as error:  # an operator may raise anything
            self._failures[place] = reason(error)
            if isinstance(error, torch.cuda.OutOfMemoryError):
                torch.cuda.empty_cache()
            self._context_lost = not self._device.usable()
            return None

    def _capture_all(self, ready: dict[int, Ready]) -> None:
        """Trace what is new, then capture it, and anew what lies in memory that an arena left."""
        before = [one.calls for one in self._captured.values()]
        before = before or self._device.captures.calls_on_curve(self._slots)
        new, most = list(ready.values()), min((r.most_calls for r in ready.values()), default=1)
        calls = median_low(before or [calls_of_runs([r.us for r in new], most) if new else 1])
        for one in ready.values():
            self._reserve(one, calls)
        stale = {i: one.ready for i, one in self._captured.items() if not one.current}
        self._trace({i: one.ready for i, one in self._captured.items()} | ready)
        ready = dict(sorted((ready | stale).items()))
        nodes = sum(self._kernels(place) * calls + OTHER_NODES for place in ready)
        if not before or self._device.graphs.nodes + nodes > DEVICE_NODES:
            calls = self._affordable(ready, calls)
        for place, one in ready.items():
            made = self._guarded(place, partial(self._capture, place, one, calls))
            if self._context_lost:
                return
            if made is None:
                self._captured.pop(place, None)
            else:
                self._captured[place] = made
                self._device.captures.keep(self._keys[place], made)

    def _reserve(self, ready: Ready, calls: int) -> None:
        """Cold weights that suffice for all calls of a run and the reuse distance."""
        if ready.cold:
            device, own = self._device, calls * ready.weight_bytes if calls > 1 else 0
            reuse = max(device.cold_bytes, own, min(self._reuse_bytes, device.most_cold_bytes))
            ready.placement.reserve(reuse)

    def _trace(self, ready: Mapping[int, Ready]) -> None:
        """Names of kernels, of points that no session has traced, here or in an earlier process;
        without them a curve is measured all the same."""

        def once(one: Ready) -> Callable[[], object]:
            call = one.placement.bind()

            def run() -> None:
                one.precision()
                call()

            return run

        device = self._device
        points = {one.slot.point: one for one in ready.values()}
        unknown = {point: one for point, one in points.items() if point not in device.names}
        found = device.tracer.typical_calls([once(one) for one in unknown.values()])
        for point, traced in zip(unknown, found, strict=False):
            if traced is not None:
                device.names[point] = tuple(event.name for event in traced)
        for place, slot in enumerate(self._slots):
            if names := device.names.get(slot.point):
                self._names[place] = names

    def _kernels(self, place: int) -> int:
        return len(self._names.get(place, ())) or ASSUMED_KERNELS

    def _affordable(self, ready: Mapping[int, Ready], calls: int) -> int:
        """As many calls as the nodes that are left allow each slot."""
        budget = min(NODE_BUDGET, (DEVICE_NODES - self._device.graphs.nodes) // 2)
        nodes = budget // max(1, len(ready)) - OTHER_NODES
        return max(1, min([calls, *(nodes // self._kernels(place) for place in ready)]))

    def _capture(self, place: int, ready: Ready, calls: int) -> Captured:
        """The slot's run in a graph, or launched by the host where that is asked for or all that
        works."""
        import torch

        device, remark = self._device, ""
        ready.precision()
        if device.timer == GRAPH:
            try:
                run: TimedRun = self._in_graph(ready, calls)
                device.graphs.nodes += self._kernels(place) * calls + OTHER_NODES
                return Captured(ready, run, calls, "", ready.placement.growths)
            except torch.cuda.OutOfMemoryError:
                raise
            except Exception as error:
                why_not = reason(error)
                if not device.falls_back or not device.usable():
                    raise MeasurementError(f"no CUDA graph can capture it: {why_not}") from None
                remark = f"timed by events, no CUDA graph can capture it: {why_not}"
        work = self._work(ready, min(calls, MOST_LAUNCHED))
        run = self._tried(LaunchedRun(work, ready.enqueue_us))
        return Captured(ready, run, calls, remark, ready.placement.growths)

    def _in_graph(self, ready: Ready, calls: int) -> TimedRun:
        return self._tried(GraphRun(self._work(ready, calls), self._device.graphs))

    def _tried(self, run: TimedRun) -> TimedRun:
        """Launched once: the first launch uploads a graph, and what goes wrong is this slot's."""
        run.launch()
        self._device.synchronise()
        run.total_us()
        return run

    def _work(self, ready: Ready, calls: int) -> GraphWork:
        bound = tuple(ready.placement.bind() for _ in range(calls))
        before = self._device.flush if ready.cold else bound[0]
        return GraphWork(bound, before, calls * ready.us if ready.heavy else 0.0)

    # --- calling

    def block(self, order: Sequence[int]) -> BlockTimes:
        """Launch each of these slots once, in this order, and wait once.

        Raises :class:`MeasurementError` where the device fails: which call did it is not known.
        """
        if self._context_lost:
            raise MeasurementError("the GPU's context is lost: open the device anew")
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
                self._context_lost = not self._device.usable()
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
        one = self._captured[slot]
        try:
            one.ready.precision()
            one.run.launch()
        except torch.cuda.OutOfMemoryError as error:
            failed[slot] = reason(error)

    def _timed(self, slot: int) -> TimedCall:
        run = self._captured[slot].run
        return TimedCall(slot, run.total_us() / run.calls)

    # --- reporting

    def kernels(self) -> Mapping[int, tuple[str, ...]]:
        return self._names

    def remarks(self) -> Mapping[int, str]:
        """Why slots were timed by events, and why kernels have no names."""
        why_not = self._device.tracer.why_not
        unnamed = f"kernels have no names: {why_not}" if why_not else ""
        each = {place: (one.remark, unnamed) for place, one in self._captured.items()}
        return {place: "; ".join(filter(None, said)) for place, said in each.items() if any(said)}

    def close(self) -> None:
        """What was captured stays the device's: see :meth:`.Captures.forget`."""
        if not self._closed:
            self._closed = True
            self._captured = {}
            self._device.captures.open_sessions -= 1


def _keys(slots: Sequence[Slot], reuse_bytes: int) -> dict[int, Key]:
    """What a slot is captured under; a slot that is listed twice is captured twice."""
    seen: Counter[Slot] = Counter()
    keys = {}
    for place, slot in enumerate(slots):
        keys[place] = slot, reuse_bytes, seen[slot]
        seen[slot] += 1
    return keys
