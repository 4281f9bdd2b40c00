"""One point's calls between two events, in one CUDA graph.

    before · sleep · event · r calls · event · rest

Several calls, since events step by about half a microsecond. In a graph nothing but the device
itself launches the calls, so that no launch gap of the host's is timed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from gacprof.devices.memory import BoundCall

CYCLES_PER_US = 2_000
"""SM clocks are around 2 GHz; a slower one only makes sleeps longer."""
LEAD_IN_US = 5.0
"""Before the first event: some times what one node of a graph takes to start the next."""
MAX_SLEEP_US, ROUGH_CALLS = 2_000.0, 4


class TimedGraph:
    """A graph that measures its calls whenever it is launched.

    ``before`` leaves the cache as the calls are to find it; the device idles for ``rest_us`` after
    them. The calls must have run on the current stream: what they do once (load modules, ask
    heuristics, allocate workspaces) cannot be captured. The CUDA graph joins ``graphs`` whatever
    becomes of its capture, and is to stay there: from torch 2.12 on, one that goes away frees the
    cuBLAS workspaces of its stream, which the others use (pytorch/pytorch#193402).
    """

    def __init__(
        self,
        calls: Sequence[BoundCall],
        before: Callable[[], Any],
        rest_us: float,
        graphs: list[torch.cuda.CUDAGraph],
        pool: Any,
    ) -> None:
        self._calls, self._before, self._rest_us = calls, before, rest_us
        self._start = torch.cuda.Event(enable_timing=True, external=True)
        self._end = torch.cuda.Event(enable_timing=True, external=True)
        self._graph = torch.cuda.CUDAGraph()
        graphs.append(self._graph)
        self._graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            self._enqueue()
        finally:
            self._graph.capture_end()

    def _enqueue(self) -> None:
        self._before()
        sleep(LEAD_IN_US)
        self._start.record()
        for call in self._calls:
            call()
        self._end.record()
        if self._rest_us:
            sleep(self._rest_us)

    def launch(self) -> None:
        """Enqueue everything on the current stream; wait for nothing."""
        self._graph.replay()

    def call_us(self) -> float:
        """Microseconds of one call of the latest launch, once the device is done."""
        return self._start.elapsed_time(self._end) * 1e3 / len(self._calls)


def rough_us(call: BoundCall, enqueue_us: float) -> float:
    """About how long a call takes, launched by the host while the device sleeps; ``enqueue_us`` is
    what the host needs to enqueue it."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    sleep(min(MAX_SLEEP_US, 20.0 + 2 * ROUGH_CALLS * enqueue_us))
    start.record()
    for _ in range(ROUGH_CALLS):
        call()
    end.record()
    end.synchronize()
    return max(0.1, start.elapsed_time(end) * 1e3 / ROUGH_CALLS)


def sleep(us: float) -> None:
    """Keep the device busy with nothing."""
    torch.cuda._sleep(int(us * CYCLES_PER_US))


LABEL = "gacprof call "
APART_S = 50e-6
"""Between a label and what it is of: the device's clock may be off by some microseconds."""
PREFIX = 256
"""Kernels of no meaning at the head of a trace: CUPTI 13.0 gives a trace's first records wrong
times, and Kineto drops those (pytorch/pytorch#192021)."""
SETTINGS = {
    "KINETO_LOG_LEVEL": "6",
    "TEARDOWN_CUPTI": "0",
    "DISABLE_CUPTI_LAZY_REINIT": "1",
}
"""Read from the environment when Kineto is first used: no lines on stderr; CUPTI stays attached,
since attaching it again crashes where there are CUDA graphs."""


def kernel_names(calls: Sequence[Callable[[], object]]) -> list[tuple[str, ...]]:
    """Names of the kernels, copies and memsets of one call of each, in order of their start; empty
    for all where nothing can be traced."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    scratch = torch.zeros(1, device="cuda")
    try:
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            for _ in range(PREFIX):
                scratch.add_(1)
            for number, call in enumerate(calls):
                torch.cuda.synchronize()
                time.sleep(APART_S)
                with record_function(f"{LABEL}{number}"):
                    time.sleep(APART_S)
                    call()
            torch.cuda.synchronize()
            time.sleep(APART_S)
    except (RuntimeError, AssertionError):  # the latter where CUPTI is missing
        return [()] * len(calls)
    results: Any = profiler.profiler
    return names_by_label(results.kineto_results.events(), len(calls))


def names_by_label(events: Sequence[Any], count: int) -> list[tuple[str, ...]]:
    """Names of what the device began to do after each of ``count`` labels and before the next."""
    names: list[list[str]] = [[] for _ in range(count)]
    number = -1
    for event in sorted(events, key=lambda event: event.start_ns()):
        on_host = event.device_type() == torch.autograd.DeviceType.CPU
        if event.name().startswith(LABEL) and on_host:
            number = int(event.name().removeprefix(LABEL))
        elif not on_host and number >= 0 and not event.name().startswith(LABEL):
            names[number].append(event.name())
    return [tuple(call_names) for call_names in names]
