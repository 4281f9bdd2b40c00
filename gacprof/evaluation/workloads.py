"""What a model is timed at: reading a prompt, and writing a token with a KV cache."""

from __future__ import annotations

import copy
import inspect
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from gacprof.core.errors import MeasurementError, first_line
from gacprof.devices.kineto import Traced, trace
from gacprof.devices.threads import ComputeThreads, longest_wait_us

TRACED_STEPS, WARM_UP_STEPS = 5, 3


@dataclass(frozen=True)
class BenchWorkload:
    """``prefill``: one forward pass over ``tokens``, last logits only. ``decode``: one token,
    with ``tokens`` in the KV cache. ``calls`` is how often a round times it."""

    kind: Literal["prefill", "decode"]
    tokens: int
    batch: int
    calls: int = 1

    @property
    def name(self) -> str:
        return f"{self.kind} {self.tokens}"


@dataclass(frozen=True)
class CallTime:
    """One timing. ``waited_us`` is how long a compute thread waited for a core meanwhile."""

    us: float
    waited_us: float = 0.0


class Clock:
    """Times a call on a device: CUDA events, or the monotonic clock. ``threads`` compute on a
    CPU; without them nothing is known of their waits."""

    def __init__(self, device: torch.device, threads: ComputeThreads | None = None) -> None:
        self.device = device
        self._waits = threads.waits_ns if threads else tuple[int, ...]

    @property
    def name(self) -> str:
        return "cuda-events" if self.device.type == "cuda" else "cpu-monotonic"

    def time(self, call: Callable[[], Any]) -> CallTime:
        if self.device.type == "cpu":
            before, start = self._waits(), time.perf_counter_ns()
            call()
            us = (time.perf_counter_ns() - start) / 1e3
            return CallTime(us, longest_wait_us(before, self._waits()))
        with torch.cuda.device(self.device):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            begin.record()
            call()
            end.record()
            torch.cuda.synchronize()
        return CallTime(float(begin.elapsed_time(end)) * 1e3)


class Runner(ABC):
    """One model at one workload, on inputs that are the same for all models."""

    def __init__(self, model: nn.Module, ids: torch.Tensor) -> None:
        self._model, self._ids = model, ids

    @abstractmethod
    def call(self) -> Any:
        """What is timed."""

    def prepare(self) -> None:  # noqa: B027 - a prefill needs nothing
        """Before every call, untimed: leave the state that each call is to start from."""

    def time(self, clock: Clock) -> CallTime:
        with torch.inference_mode():
            self.prepare()
            return clock.time(self.call)


class Prefill(Runner):
    def __init__(self, model: nn.Module, ids: torch.Tensor) -> None:
        super().__init__(model, ids)
        accepted = inspect.signature(model.forward).parameters
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}

    def call(self) -> Any:
        return self._model(input_ids=self._ids, use_cache=True, **self._last_only)


class DecodeStep(Runner):
    """The token after the prompt, again and again: what a step appends to the KV cache is taken
    off before the next, so that every step of every model sees the same context."""

    _cache: Any = None
    _primed: Any = None
    """A copy of the cache after the prompt, where a cache cannot be cropped."""
    _token: torch.Tensor | None = None
    _used = False

    def prepare(self) -> None:
        if self._cache is None:
            output = Prefill(self._model, self._ids).call()
            self._token = output.logits[:, -1:].argmax(-1)
            self._cache = output.past_key_values
            if not _crops(self._cache):
                self._primed = copy.deepcopy(self._cache)
        elif self._used:
            if self._primed is None:
                self._cache.crop(-1)
            else:
                self._cache = copy.deepcopy(self._primed)
        self._used = False

    def call(self) -> Any:
        """Greedy, by hand: the token is chosen on the device, so nothing waits for the host."""
        self._used = True
        output = self._model(input_ids=self._token, past_key_values=self._cache, use_cache=True)
        return output.logits[:, -1:].argmax(-1)


class CapturedStep(DecodeStep):
    """The same step as one CUDA graph: a launch from the host takes the GPU as long as a small
    product, and a step has a thousand. What the step appends goes to memory of the graph, so that
    the cache it reads stays as it was. Launched as :class:`DecodeStep` where the model cannot be
    captured; ``why_not`` says why then."""

    why_not = ""
    _graph: torch.cuda.CUDAGraph | None = None
    _held: tuple[Any, ...] = ()
    """What the graph reads and writes."""

    def prepare(self) -> None:
        if self._graph is None and not self.why_not:
            try:
                self._capture()
            except Exception as error:  # a model's code may raise anything in a capture
                self.why_not = first_line(error)
                self._cache = self._graph = None
        if self._graph is None:
            super().prepare()

    def call(self) -> Any:
        if self._graph is None:
            return super().call()
        self._graph.replay()
        return self._held[-1]

    def _capture(self) -> None:
        """Raises :class:`MeasurementError` for a cache that a step changes in place, and where the
        graph chooses another token than the step itself."""
        super().prepare()
        if self._primed is not None:
            raise MeasurementError("its cache is not one that only grows")
        stream = torch.cuda.Stream(self._ids.device)
        stream.wait_stream(torch.cuda.current_stream(self._ids.device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP_STEPS):
                chosen = super().call()
                super().prepare()
        stream.synchronize()
        read, graph = list(_tensors(self._cache)), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            found = super().call()
        self._held = (read, list(_tensors(self._cache)), found)
        graph.replay()
        if not torch.equal(found, chosen):
            raise MeasurementError("its graph chooses another token")
        self._graph = graph


def _tensors(cache: Any) -> Iterator[torch.Tensor]:
    """Keys and values of a cache of growing layers."""
    yield from (tensor for layer in cache.layers for tensor in (layer.keys, layer.values))


def _crops(cache: Any) -> bool:
    """Whether the newest token can be taken off again. Full sliding windows and recurrent states
    cannot give back what they forgot: only plain growing layers are trusted to."""
    if any(type(layer).__name__ != "DynamicLayer" for layer in getattr(cache, "layers", [cache])):
        return False
    trial = copy.deepcopy(cache)
    trial.crop(-1)
    return int(trial.get_seq_length()) == int(cache.get_seq_length()) - 1


def runner(model: nn.Module, workload: BenchWorkload, ids: torch.Tensor) -> Runner:
    """``ids`` are token ids [batch, at least ``workload.tokens``]."""
    step = CapturedStep if ids.device.type == "cuda" else DecodeStep
    kind = Prefill if workload.kind == "prefill" else step
    return kind(model, ids[:, : workload.tokens])


Tracer = Callable[[Callable[[], object]], Sequence[Traced]]


def busy_share(runner: Runner, clock: Clock, tracer: Tracer = trace) -> float | None:
    """Time of the kernels of :data:`TRACED_STEPS` calls over the time of as many untraced calls.

    An eager decode step of a small model launches a thousand kernels; the host needs 15 to 25 ms
    for that, the GPU perhaps 5. Then the step's time is the host's, and dims make no difference
    to it. None on a CPU, and where the profiler gives nothing.
    """
    if clock.device.type != "cuda":
        return None

    def call() -> None:
        runner.call()
        torch.cuda.synchronize(clock.device)

    whole = sum(runner.time(clock).us for _ in range(TRACED_STEPS))
    computed = 0.0
    try:
        for _ in range(TRACED_STEPS):
            with torch.inference_mode():
                runner.prepare()
                computed += covered_us(tracer(call))
    except MeasurementError:
        return None
    return min(1.0, computed / whole) if computed else None


def covered_us(events: Sequence[Traced]) -> float:
    """The time during which anything ran; kernels that overlap count once."""
    total, end = 0, 0
    for event in sorted(events, key=lambda e: e.start_ns):
        total += max(0, event.end_ns - max(event.start_ns, end))
        end = max(end, event.end_ns)
    return total / 1e3
