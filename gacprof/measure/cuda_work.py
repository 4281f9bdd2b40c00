"""One prepared call on a GPU: device timestamps, or events, behind a sleep on the device.

The sleep lasts as long as the host needs to enqueue the call and more: launch gaps then lie
outside the window, also those between the kernels of one call. The flush before the sleep
makes every call cold where the point says so.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gacprof.errors import MeasurementError
from gacprof.measure.kineto import Traced, calls, span_us, trace

if TYPE_CHECKING:
    import torch

    from gacprof.measure.cuda import CudaDevice

WARM_UP_CALLS = 3
CYCLES_PER_US = 2_000  # SM clocks are around 2 GHz; a slower one only makes sleeps longer
LAUNCH_MARGIN = 2  # tracing about doubles what a launch costs the host
SHORTEST_SLEEP_US = 20  # a single launch, with room for a late host
LONGEST_SLEEP_US = 2_000  # a call that waits for the device cannot be enqueued ahead
CLOSING_CYCLES = 1_000
FLUSH_US = 40.0  # of twice a Hopper's L2
SPARE_CALLS, SPARE_US = 20, 1_500.0  # a trace takes milliseconds to begin, end and read
TRACE_ATTEMPTS = 3
"""A first trace attaches CUPTI, and one may miss what starts as it starts."""


class CudaWork:
    """One prepared call, timed by events; its kernels come from one traced call more."""

    def __init__(self, device: CudaDevice, call: Callable[[], Any], cold: bool) -> None:
        self._device = device
        self._call = call
        self._cold = cold
        self._sleep_cycles = SHORTEST_SLEEP_US * CYCLES_PER_US
        self._rough_us = float("inf")

    def warm_up(self) -> float:
        """Also learns how long the host takes to enqueue a call, which a sleep must outlast."""
        with self._explained():
            taken = [self._by_host() for _ in range(WARM_UP_CALLS)]
        self._sleep_cycles = sleep_cycles(min(enqueued for enqueued, _ in taken))
        self._rough_us = min(done for _, done in taken)
        return self._rough_us

    def _by_host(self) -> tuple[float, float]:
        """µs until the host has enqueued a call, and until the device has done it."""
        start = time.perf_counter_ns()
        self._call()
        enqueued = time.perf_counter_ns()
        self._device.synchronise()
        return (enqueued - start) / 1e3, (time.perf_counter_ns() - start) / 1e3

    def time(self, repeats: int) -> list[float]:
        with self._explained():
            pairs = [self._one() for _ in range(repeats)]
            self._device.synchronise()
        return [start.elapsed_time(end) * 1e3 for start, end in pairs]

    def _one(self) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        import torch

        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._before()
        start.record()
        self._call()
        end.record()
        return start, end

    def _before(self) -> None:
        import torch

        if self._cold:
            self._device.flush()
        torch.cuda._sleep(self._sleep_cycles)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """On the device, whichever is current; out of memory is a point's failure like others.

        Memory is given back then: what the failed call had taken must not linger.
        """
        import torch

        try:
            with torch.cuda.device(self._device.index):
                yield
        except torch.cuda.OutOfMemoryError as error:
            told = out_of_memory(error)
            torch.cuda.empty_cache()
            raise MeasurementError(told) from None

    def kernels(self) -> Sequence[str]:
        if self._device.why_not_traced:
            return ()

        def run() -> None:
            self._call()
            self._device.synchronise()

        try:
            with self._explained():
                return tuple(e.name for e in sorted(trace(run), key=lambda e: e.start_ns))
        except (RuntimeError, MeasurementError):
            return ()

    def clock_mhz(self) -> int | None:
        return self._device.telemetry.sm_clock_mhz()

    def remark(self) -> str:
        return self._device.remark

    def reading(self) -> dict[str, Any]:
        return self._device.telemetry.reading()

    def throttled(self) -> str:
        return self._device.telemetry.throttle_reason()


class TracedWork(CudaWork):
    """The same call, timed by the device's own timestamps."""

    _kernels: tuple[str, ...] = ()
    _ahead: Sequence[float] = ()

    def time(self, repeats: int) -> list[float]:
        """A trace costs as much as dozens of short calls: it takes some more than asked for,
        and the next question is answered from those."""
        timings = list(self._ahead)
        if len(timings) < repeats:
            with self._explained():
                traced = self._traced(repeats - len(timings) + self._spare())
            self._kernels = tuple(event.name for event in traced[-1])
            timings += [span_us(call) for call in traced]
        self._ahead = timings[repeats:]
        return timings[:repeats]

    def _spare(self) -> int:
        """How many calls more than asked for a trace should take."""
        each_us = self._rough_us + self._sleep_cycles / CYCLES_PER_US + self._cold * FLUSH_US
        return min(SPARE_CALLS, int(SPARE_US / each_us))

    def throttled(self) -> str:
        """What was timed ahead belongs to the spell that this ends."""
        self._ahead = ()
        return super().throttled()

    def _traced(self, repeats: int) -> list[Sequence[Traced]]:
        """The events of so many calls; traced again where some were lost."""
        for attempt in range(1, TRACE_ATTEMPTS + 1):
            try:
                return calls(trace(lambda: self._run(repeats)), repeats)
            except MeasurementError:
                if attempt == TRACE_ATTEMPTS:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _run(self, repeats: int) -> None:
        import torch

        for _ in range(repeats):
            self._before()
            self._call()
            torch.cuda._sleep(CLOSING_CYCLES)
        self._device.synchronise()

    def kernels(self) -> Sequence[str]:
        return self._kernels


def sleep_cycles(enqueue_us: float) -> int:
    """For how many cycles a call that takes the host so long to enqueue needs the device busy."""
    wanted_us = LAUNCH_MARGIN * enqueue_us
    return int(min(LONGEST_SLEEP_US, max(SHORTEST_SLEEP_US, wanted_us)) * CYCLES_PER_US)


def out_of_memory(error: BaseException) -> str:
    """What torch says of an allocation that failed, without its advice."""
    tried = re.search(r"Tried to allocate ([\d.]+ \w+)", str(error))
    return f"out of GPU memory (tried to allocate {tried[1]})" if tried else "out of GPU memory"


def first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
