"""One point's calls between two events, in one CUDA graph; and any step of the host's as a graph.

    before · sleep · event · r calls · event · rest

No launch gap of the host's is timed, but about a microsecond in which the device starts a kernel.
Of several calls one's time is that among others: kernels of sm90 may begin before their predecessor
has ended (programmatic dependent launch).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

CYCLES_PER_US = 2_000  # SM clocks are around 2 GHz; a slower one only makes sleeps longer
LEAD_IN_US = 5.0  # before the first event: some times what a node takes to start the next
MAX_SLEEP_US, ROUGH_CALLS, WARM_UP_CALLS = 2_000.0, 4, 3
DIGITS = 4  # of microseconds: a tenth of a nanosecond, finer than any tick over r


class TimedGraph:
    """A graph that measures its calls whenever it is launched.

    ``before`` leaves the cache as the calls are to find it. The calls must have run on the current
    stream: what they do once (load modules, ask heuristics) cannot be captured. The CUDA graph
    joins ``graphs`` and has to stay there.
    """

    def __init__(
        self,
        calls: Sequence[Callable[[], Any]],
        graphs: list[torch.cuda.CUDAGraph],
        pool: Any,
        *,
        before: Callable[[], Any] = lambda: None,
        lead_in_us: float = LEAD_IN_US,
        rest_us: float = 0.0,
    ) -> None:
        self._calls = calls
        self._start = torch.cuda.Event(enable_timing=True, external=True)
        self._end = torch.cuda.Event(enable_timing=True, external=True)
        self._graph = torch.cuda.CUDAGraph()
        # Kept whatever becomes of its capture: from torch 2.12 on a graph that goes away frees the
        # cuBLAS workspaces of its stream (pytorch/pytorch#193402).
        graphs.append(self._graph)
        self._graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            before()
            sleep(lead_in_us)
            self._start.record()
            for call in calls:
                call()
            self._end.record()
            if rest_us:
                sleep(rest_us)
        finally:
            self._graph.capture_end()

    def launch(self) -> None:
        """Enqueue everything on the current stream; wait for nothing."""
        self._graph.replay()

    def elapsed_us(self) -> float:
        """Return the microseconds between the latest launch's events; the device has to be done."""
        return self._start.elapsed_time(self._end) * 1e3

    def call_us(self, constant_us: float) -> float:
        """Return the microseconds of a call of the latest launch; nan where they are none."""
        us = (self.elapsed_us() - constant_us) / len(self._calls)
        return round(us, DIGITS) if us > 0 else math.nan


def rough_us(call: Callable[[], Any], enqueue_us: float) -> float:
    """Return about how long a call takes, from calls enqueued by the host (in ``enqueue_us`` each)
    while the device sleeps. It was called before. Raises where it waits for the device."""
    with refusing_waits():  # only now: first calls may wait, to load modules
        call()
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


@contextmanager
def refusing_waits() -> Iterator[None]:
    """Raise where a call waits for the device, which no graph can hold."""
    # Asked before any capture: one that fails spoils torch's allocator.
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def captured(
    step: Callable[[], object], rewind: Callable[[], object], device: torch.device
) -> Callable[[], None]:
    """Capture a step in a CUDA graph and return what replays it on the current stream. ``rewind``
    leaves the state that a step starts from, in the memory that it was in. What is returned holds
    the graph: keep it as long as any that was captured beside it."""
    with torch.cuda.device(device):
        stream = torch.cuda.Stream()  # of a pool: another capture's workspaces may be this stream's
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP_CALLS):
                rewind()
                step()
            rewind()
            with refusing_waits():
                step()
            rewind()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            step()
    return graph.replay
