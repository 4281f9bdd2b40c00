"""Device timestamps and kernel names from one trace (CUPTI through torch's Kineto).

Each call is put between two marks, short sleeps on the device whose kernel has a name that
nothing else has. What the device did between an opening and a closing mark is the call. Events
are read directly: the profiler's own averages take twenty times as long.

CUPTI 13.0 gives the first records of a trace wrong times, more of them with each trace of a
process, and Kineto drops those (pytorch/pytorch#192021; mended in 13.1). So all calls share one
trace; every trace begins with kernels of no meaning, more of them each time; and where it loses
events twice, a device is traced no more.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gacprof.core.errors import MeasurementError, first_line
from gacprof.devices.cuda_graph import SHORTEST_SLEEP_US, sleep

if TYPE_CHECKING:
    import torch

MARK = "spin_kernel"
"""What ``torch.cuda._sleep`` launches (aten/src/ATen/cuda/Sleep.cu)."""

SETTINGS = {
    "KINETO_LOG_LEVEL": "6",
    "TEARDOWN_CUPTI": "0",
    "DISABLE_CUPTI_LAZY_REINIT": "1",
}
"""Read from the environment when Kineto is first used. A log level above all of its own: at its
default, torch 2.13 writes two lines to stderr a trace. The others as torch.profiler sets them
where there are CUDA graphs: detaching CUPTI and attaching it again crashes then."""

NO_WORK = ("cuda_sync", "cuda_event", "gpu_user_annotation", "overhead")
"""Activity types (ActivityType.h) filed under the device though nothing runs there."""

EDGE_S = 100e-6
"""Kineto drops what began before its window or ended after it. The window's ends are of the
host's clock, events of the device's converted to it: these may be off by some microseconds."""

CALLS_EACH = 2
"""Marked calls of each thing traced."""
PREFIX, LONGEST_PREFIX = 64, 4096
"""Kernels of no meaning at the head of a process's first trace, and of any."""
LOSSES = 2
"""Traces in a row that may lose events before a process gives up tracing."""

NO_EVENTS = (
    "the tracer (CUPTI) gave no device events: it may lack permission, or another profiler may "
    "be attached; KINETO_LOG_LEVEL=1 in the environment lets it say more"
)


@dataclass(frozen=True)
class Traced:
    """One thing the device did: a kernel, a copy or a memset. Nanoseconds."""

    name: str
    start_ns: int
    end_ns: int


def recorded(run: Callable[[], object]) -> list[Traced]:
    """All that the tracer hands on of what the device did during ``run``, which must synchronise
    before it returns: what it lost is not known. :func:`trace` knows.

    ``torch.profiler`` wraps the profiler used here in schedules and imports Inductor on its
    first start; neither is of use to a trace of a few milliseconds.

    Raises :class:`MeasurementError` where the profiler cannot be used.
    """
    from torch.autograd.profiler import profile

    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    with ExitStack() as session:
        try:
            traced = session.enter_context(
                profile(use_cpu=False, use_device="cuda", use_kineto=True)
            )
        except (AttributeError, AssertionError) as error:  # the latter where CUPTI is missing
            raise MeasurementError(f"torch's profiler gives no device events: {error}") from None
        time.sleep(EDGE_S)
        run()
        time.sleep(EDGE_S)
    if traced.kineto_results is None:
        raise MeasurementError("torch's profiler gives no device events: it kept no results")
    return device_events(traced.kineto_results.events())


def trace(run: Callable[[], object]) -> Sequence[Traced]:
    """What the current CUDA device did during ``run``, in order.

    Raises :class:`MeasurementError` where the profiler cannot be used or lost events.
    """
    import torch

    if not torch.cuda.is_available():
        raise MeasurementError("torch's profiler gives no device events: there is no CUDA device")
    return Tracer(torch.zeros(1, device="cuda"), torch.cuda.synchronize).during(run)


def mark() -> None:
    """A kernel that :data:`MARK` names."""
    sleep(SHORTEST_SLEEP_US)


def device_events(events: Iterable[Any]) -> list[Traced]:
    """Of Kineto's events, what ran on the device. Launches and profiler overhead are the host's."""
    import torch

    cuda = torch.autograd.DeviceType.CUDA
    return [
        Traced(e.name(), e.start_ns(), e.start_ns() + e.duration_ns())
        for e in events
        if e.device_type() == cuda and e.duration_ns() > 0 and _kind(e) not in NO_WORK
    ]


def _kind(event: Any) -> str:
    """Kineto's name of its activity type; empty where PyTorch does not hand it on."""
    kind: Callable[[], str] | None = getattr(event, "activity_type", None)
    return kind() if kind else ""


def calls(events: Iterable[Traced], expected: int) -> list[Sequence[Traced]]:
    """What each of ``expected`` calls did, in order: all between its opening and closing mark.
    What comes before the first mark counts for nothing.

    Raises :class:`MeasurementError` where marks are missing, or the work of all calls: CUPTI drops
    events when its buffers overflow, and then calls cannot be told apart.
    """
    marks, within = 0, []
    found: list[Sequence[Traced]] = []
    in_order = sorted(events, key=lambda e: (e.start_ns, e.end_ns))
    if not in_order:
        raise MeasurementError(NO_EVENTS)
    for event in in_order:
        if MARK not in event.name:
            if marks % 2:
                within.append(event)
            continue
        marks += 1
        if marks % 2 == 0:
            found.append(tuple(within))
        within = []
    if marks != 2 * expected or not any(found):
        raise MeasurementError(
            f"the trace lost events: {marks} marks for {expected} calls, "
            f"{sum(not call for call in found)} calls without any work"
        )
    return found


def typical(found: Sequence[Sequence[Traced]]) -> Sequence[Traced]:
    """Of several calls of one thing, the fastest that launched what most of them did.

    Where as many launched one thing as another, the later ones count: first calls do more. Empty
    where no call did anything.
    """
    found = [call for call in found if call]
    if not found:
        return ()
    patterns = [tuple(event.name for event in call) for call in found]
    counts = Counter(patterns)
    most = max(reversed(patterns), key=counts.__getitem__)
    return min(
        (call for call, names in zip(found, patterns, strict=True) if names == most), key=span_us
    )


def span_us(call: Sequence[Traced]) -> float:
    """From the start of a call's first kernel to the end of its last, gaps included."""
    return (max(e.end_ns for e in call) - min(e.start_ns for e in call)) / 1e3


class Tracer:
    """The traces of one process. ``why_not`` says why it does not trace, empty while it does."""

    _traces = 0
    """Of this process, by whichever tracer."""

    def __init__(self, scratch: torch.Tensor, finish: Callable[[], object]) -> None:
        """Kernels of no meaning write to ``scratch``; ``finish`` waits for the device."""
        self._scratch, self._finish = scratch, finish
        self.why_not = ""

    def during(self, run: Callable[[], object]) -> Sequence[Traced]:
        """What the device did during ``run``. Raises :class:`MeasurementError` where that is lost,
        and whatever ``run`` raises."""
        return calls(self._recorded([run], 1, None), 1)[0]

    def typical_calls(self, each: Sequence[Callable[[], object]]) -> list[Sequence[Traced] | None]:
        """What one call of each of these does on the device, None for one that raises; an empty
        list where traces are lost."""
        for _ in range(LOSSES if each else 0):
            if self.why_not:
                return []
            raised: set[int] = set()
            try:
                events = self._recorded(each, CALLS_EACH, raised)
                if len(raised) == len(each):
                    return [None] * len(each)
                found = calls(events, CALLS_EACH * len(each))
            except (MeasurementError, RuntimeError) as error:
                reason = first_line(error)
                continue
            return [
                None if number in raised else typical(found[place : place + CALLS_EACH])
                for number, place in enumerate(range(0, len(found), CALLS_EACH))
            ]
        if each:
            self.why_not = reason
        return []

    def _recorded(
        self, each: Sequence[Callable[[], object]], times: int, raised: set[int] | None
    ) -> list[Traced]:
        """A trace of each of these between marks, so many times in a row. A call that raises is
        no fault of the trace: its number joins ``raised``, and the others go on."""

        def run() -> None:
            for _ in range(min(PREFIX * Tracer._traces, LONGEST_PREFIX)):
                self._scratch.add_(1)
            for number, call in enumerate(each):
                for _ in range(times):
                    mark()
                    try:
                        call()
                    except RuntimeError:
                        if raised is None:
                            raise
                        raised.add(number)
                    mark()
            self._finish()

        Tracer._traces += 1
        return recorded(run)
