"""One slot's calls between two events on a GPU: in a CUDA graph, or launched one by one.

    before · sleep · event · r calls · event · [sleep]

Several calls, since events step by about half a microsecond. The first sleep outlasts what
starting the calls costs the host or the graph, so that no launch gap lies before the first call.
In a graph nothing but the device itself launches the calls; the events are nodes of the graph
where torch has such events (2.9 and later, pytorch/pytorch#155372) and surround its replay
elsewhere.
"""

from __future__ import annotations

import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gacprof.core.errors import MeasurementError, first_line
from gacprof.devices.memory import BoundCall

if TYPE_CHECKING:
    import torch

    Events = tuple[torch.cuda.Event, torch.cuda.Event]

GRAPH, EVENTS = "cuda-graph", "cuda-events"
"""The two ways, as timers are called."""
CYCLES_PER_US = 2_000
"""SM clocks are around 2 GHz; a slower one only makes sleeps longer."""
LEAD_IN_US = 5.0
"""Before the calls of a graph: some times what one of its nodes takes to start the next."""
SHORTEST_SLEEP_US, LONGEST_SLEEP_US = 20.0, 2_000.0
"""Before what the host launches: a single launch with room for a late host; and no end for a call
that waits for the device, which no sleep lets the host get ahead of."""
LAUNCH_MARGIN = 2.0
"""A host that other work slows takes longer to launch than it did in a quiet moment."""


@dataclass(frozen=True)
class GraphWork:
    """``calls`` are bound to their operands. ``before`` leaves the cache as they are to find it,
    whatever ran last: the first of them once more, or reading other memory if weights are to be
    cold. ``rest_us`` is how long the device idles after them."""

    calls: tuple[BoundCall, ...]
    before: Callable[[], object]
    rest_us: float = 0.0


class TimedRun(ABC):
    """What can be launched again and again; its events measure how long the calls took."""

    def __init__(self, work: GraphWork) -> None:
        self._work = work
        self.calls = len(work.calls)
        self._events: Events = (event(), event())

    @abstractmethod
    def launch(self) -> None:
        """Enqueue everything on the current stream; wait for nothing."""

    def total_us(self) -> float:
        """What all calls of the last launch took, once the device is done."""
        start, end = self._events
        return start.elapsed_time(end) * 1e3

    def _between_events(self, lead_in_us: float, middle: Callable[[], object]) -> None:
        start, end = self._events
        self._work.before()
        sleep(lead_in_us)
        start.record()
        middle()
        end.record()
        if self._work.rest_us:
            sleep(self._work.rest_us)

    def _all_calls(self) -> None:
        for call in self._work.calls:
            call()


class LaunchedRun(TimedRun):
    """The host launches each call, while the device still sleeps."""

    def __init__(self, work: GraphWork, enqueue_us: float) -> None:
        """``enqueue_us`` is how long the host needs to enqueue one call."""
        super().__init__(work)
        wanted = LAUNCH_MARGIN * enqueue_us * self.calls
        self._lead_in_us = min(LONGEST_SLEEP_US, max(SHORTEST_SLEEP_US, wanted))

    def launch(self) -> None:
        self._between_events(self._lead_in_us, self._all_calls)


class GraphRun(TimedRun):
    """All calls are one CUDA graph, captured when this is made, on the current stream.

    The calls must have run on that stream before: what they do once (load modules, ask
    heuristics, allocate workspaces) cannot be captured. Raises where the calls cannot be.
    """

    def __init__(self, work: GraphWork, graphs: Graphs) -> None:
        super().__init__(work)
        external = external_events()
        self._inside = external is not None
        self._events = external or self._events
        why_not = waits_for_device(work.calls[0])
        if why_not:
            raise MeasurementError(why_not)
        self._graph = graphs.capture(self._everything if self._inside else self._all_calls)

    def _everything(self) -> None:
        self._between_events(LEAD_IN_US, self._all_calls)

    def launch(self) -> None:
        if self._inside:
            self._graph.replay()
        else:
            self._between_events(SHORTEST_SLEEP_US, self._graph.replay)


class Graphs:
    """All graphs of a device: they share memory, and are given back together."""

    def __init__(self, index: int) -> None:
        self._index = index
        self.held: list[torch.cuda.CUDAGraph] = []
        self.nodes = 0
        """Of all these graphs; who captures them counts."""

    @cached_property
    def _pool(self) -> Any:
        """Memory of all graphs: they are replayed one after another, so that they may share it
        (pytorch/pytorch#166975)."""
        import torch

        return torch.cuda.graph_pool_handle()

    def capture(self, body: Callable[[], object]) -> torch.cuda.CUDAGraph:
        """The graph of what ``body`` launches.

        It is held whatever becomes of it. From torch 2.12 on, a graph that goes away frees the
        cuBLAS workspaces of the stream it was captured on, which the others captured there use
        (pytorch/pytorch#193402). Not by ``torch.cuda.graph``, which collects garbage and gives
        memory back each time. Raises whatever ``body`` raises, or ``RuntimeError`` for a capture
        that it invalidated.
        """
        import torch

        graph = torch.cuda.CUDAGraph()
        self.held.append(graph)
        problem: Exception | None = None
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            body()
        except Exception as error:  # whatever it is, the capture must end
            problem = error
        try:
            graph.capture_end()
        except RuntimeError as error:
            problem = problem or error
        if problem is not None:
            self._end_allocations()
            raise problem
        return graph

    def _end_allocations(self) -> None:
        """Before torch 2.12 a capture that failed leaves the allocator in it, and giving back
        memory fails from then on (pytorch/pytorch#180395)."""
        import torch

        with suppress(AttributeError, RuntimeError):  # gone, or ended already
            torch._C._cuda_endAllocateToPool(self._index, self._pool)

    def reset(self) -> None:
        """Give back all graphs at once: the first that goes away may take what the others use."""
        import torch

        for graph in self.held:
            graph.reset()
        self.held.clear()
        self.nodes = 0
        self.__dict__.pop("_pool", None)
        torch.cuda.empty_cache()


def waits_for_device(call: BoundCall) -> str:
    """What torch says of a call that waits for the device, and so cannot be captured; else empty.

    Asked before, since a capture that fails leaves its traces in torch's allocator.
    """
    import torch

    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that it does not detect every wait
        torch.cuda.set_sync_debug_mode("error")
    try:
        call()
    except torch.cuda.OutOfMemoryError:
        raise
    except RuntimeError as error:
        return first_line(error)
    finally:
        torch.cuda.set_sync_debug_mode(before)
    return ""


def event() -> torch.cuda.Event:
    import torch

    return torch.cuda.Event(enable_timing=True)


def external_events() -> Events | None:
    """Events that a graph records at each replay; None where this torch has none."""
    import torch

    try:
        one, other = (torch.cuda.Event(enable_timing=True, external=True) for _ in range(2))
    except TypeError:
        return None
    return one, other


def sleep(us: float) -> None:
    """Keep the device busy with nothing."""
    import torch

    torch.cuda._sleep(int(us * CYCLES_PER_US))


def reason(error: BaseException) -> str:
    """One line of what went wrong; of a lack of memory without torch's advice."""
    import torch

    if not isinstance(error, torch.cuda.OutOfMemoryError):
        return first_line(error)
    tried = re.search(r"Tried to allocate ([\d.]+ \w+)", str(error))
    return f"out of GPU memory (tried to allocate {tried[1]})" if tried else "out of GPU memory"
