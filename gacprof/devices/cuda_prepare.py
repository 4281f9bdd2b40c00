"""One slot made ready on a GPU: warmed up, roughly timed, its operands from the arenas."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gacprof import operators
from gacprof.devices.cuda_graph import LaunchedRun, Work
from gacprof.devices.device import Slot
from gacprof.devices.memory import Call
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


@dataclass(frozen=True)
class Ready:
    """A slot that can be called. ``bind`` gives its next call, of ``us`` microseconds or so, which
    takes the host ``enqueue_us``; ``calls`` are how many of them a run should hold."""

    slot: Slot
    bind: Callable[[], Call]
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


def _rough_us(device: CudaDevice, call: Call, enqueue_us: float, cold: bool) -> float:
    """About how long a call takes: a cold one once, since a second would find its weights."""
    calls = 1 if cold else ROUGH_CALLS
    run = LaunchedRun(Work((call,) * calls, device.flush if cold else call), enqueue_us)
    run.launch()
    device.synchronise()
    return max(run.total_us() / calls, 1e-3)
