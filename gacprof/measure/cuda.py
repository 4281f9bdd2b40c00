"""A CUDA GPU as a device to sweep: device timestamps, or events behind a short sleep.

Timestamps and kernel names come from one traced pass (:mod:`.kineto`). Where the driver lets
no process trace, events take their place. Either way a sleep on the device comes first, as
long as the host needs to enqueue the call and more: launch gaps then lie outside the window,
also those between the kernels of one call. The flush before the sleep makes every call cold
where the point says so.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gacprof import operators
from gacprof.errors import MeasurementError
from gacprof.measure.environment import cuda_environment
from gacprof.measure.kineto import Traced, calls, span_us, trace
from gacprof.measure.telemetry import Telemetry
from gacprof.points import Environment, Point

if TYPE_CHECKING:
    import torch

WARM_UP_CALLS = 3
FLUSH_FACTOR = 2  # times the L2 size; an undersized flush reorders results
ASSUMED_L2_BYTES = 128 << 20
CYCLES_PER_US = 2_000  # SM clocks are around 2 GHz; a slower one only makes sleeps longer
LAUNCH_MARGIN = 2  # tracing about doubles what a launch costs the host
SHORTEST_SLEEP_US = 20  # a single launch, with room for a late host
LONGEST_SLEEP_US = 2_000  # a call that waits for the device cannot be enqueued ahead
CLOSING_CYCLES = 1_000
MEMORY_FRACTION = 0.9
BURN_IN_S = 0.5
TRACE_ATTEMPTS = 3
"""A first trace attaches CUPTI, and one may miss what starts as it starts."""
EVENTS, KINETO = "cuda-events", "kineto"


class CudaWork:
    """One prepared call, timed by events; its kernels come from one traced call more."""

    def __init__(self, device: CudaDevice, call: Callable[[], Any], cold: bool) -> None:
        self._device = device
        self._call = call
        self._cold = cold
        self._sleep_cycles = SHORTEST_SLEEP_US * CYCLES_PER_US

    def warm_up(self) -> float:
        """Also learns how long the host takes to enqueue a call, which a sleep must outlast."""
        with self._explained():
            for _ in range(WARM_UP_CALLS):
                self._call()
            self._device.synchronise()
            start = time.perf_counter_ns()
            self._call()
            enqueued = time.perf_counter_ns()
            self._device.synchronise()
        self._sleep_cycles = sleep_cycles((enqueued - start) / 1e3)
        return (time.perf_counter_ns() - start) / 1e3

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

    def time(self, repeats: int) -> list[float]:
        with self._explained():
            traced = self._traced(repeats)
        self._kernels = tuple(event.name for event in traced[-1])
        return [span_us(call) for call in traced]

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


class CudaDevice:
    """``timer`` is ``auto``, ``kineto`` or ``cuda-events``; auto takes what works, in this order.

    Raises :class:`MeasurementError` where there is no such GPU, or it cannot be traced though
    that was asked for.
    """

    def __init__(self, index: int = 0, timer: str = "auto") -> None:
        import torch

        if timer not in ("auto", KINETO, EVENTS):
            raise MeasurementError(f"unknown timer '{timer}': use auto, {KINETO} or {EVENTS}")
        if not torch.cuda.is_available():
            raise MeasurementError(
                "no CUDA device is usable here (torch.cuda.is_available() is false): "
                "use --device cpu, or see 'gacprof doctor'"
            )
        if index >= torch.cuda.device_count():
            raise MeasurementError(
                f"there is no cuda:{index} here; the last is cuda:{torch.cuda.device_count() - 1}"
            )
        self.index = index
        self.torch_device = torch.device("cuda", index)
        self.telemetry = Telemetry(index)
        self._asked = timer
        if timer == KINETO and self.why_not_traced:
            raise MeasurementError(f"this GPU cannot be traced: {self.why_not_traced}")

    @cached_property
    def timer(self) -> str:
        """Tried on first use: whoever only wants to know the device attaches no tracer to it."""
        return EVENTS if self._asked == EVENTS or self.why_not_traced else KINETO

    @cached_property
    def why_not_traced(self) -> str:
        """Why a traced call gives no timestamps (no permission, no CUPTI); empty if it does."""
        import torch

        try:
            x = torch.ones(1 << 16, device=self.torch_device)
            TracedWork(self, lambda: x + x, cold=False).time(2)
        except (RuntimeError, MeasurementError) as error:
            return first_line(error)
        return ""

    @property
    def remark(self) -> str:
        """What every sample should tell of how it was timed, where that was not as wished."""
        if self._asked == "auto" and self.timer == EVENTS:
            return f"timed by events, tracing does not work: {self.why_not_traced}"
        return ""

    @cached_property
    def environment(self) -> Environment:
        return cuda_environment(self.index, self.telemetry.driver())

    @cached_property
    def _flush_buffer(self) -> torch.Tensor:
        import torch

        l2 = self.environment.facts.get("l2_bytes") or ASSUMED_L2_BYTES
        elements = FLUSH_FACTOR * l2 // 4  # four bytes each: wider stores than of single bytes
        return torch.empty(elements, dtype=torch.int32, device=self.torch_device)

    def flush(self) -> None:
        self._flush_buffer.zero_()

    def synchronise(self) -> None:
        import torch

        torch.cuda.synchronize(self.index)

    def prepare(self, point: Point) -> CudaWork:
        import torch

        operator = operators.get(point.operator)
        self._check_memory(operator.bytes_moved(point))
        torch.cuda.set_device(self.index)
        operators.set_precision(point)
        try:
            call = operator.prepare(point, self.torch_device)
        except torch.cuda.OutOfMemoryError as error:
            told = out_of_memory(error)
            torch.cuda.empty_cache()
            raise MeasurementError(f"{point}: {told}") from None
        except RuntimeError as error:
            raise MeasurementError(f"{point}: {first_line(error)}") from None
        kind = TracedWork if self.timer == KINETO else CudaWork
        return kind(self, call, cold=point.flag.get("cache") == "cold")

    def _check_memory(self, operand_bytes: int) -> None:
        """Refuse what cannot fit, counting what torch holds in reserve as free: it is reused."""
        import torch

        free, _ = torch.cuda.mem_get_info(self.index)
        reserve = torch.cuda.memory_reserved(self.index) - torch.cuda.memory_allocated(self.index)
        free += reserve
        if operand_bytes > MEMORY_FRACTION * free:
            raise MeasurementError(
                f"the operands need {operand_bytes / 2**30:.1f} GiB, "
                f"the GPU has {free / 2**30:.1f} GiB free"
            )

    def usable(self) -> bool:
        """Whether the CUDA context still works. An illegal access or a failed assertion spoils
        it for the rest of the process; a refused call or a lack of memory does not."""
        import torch

        try:
            self.synchronise()
            torch.ones(1, device=self.torch_device).add_(1).item()
        except torch.cuda.OutOfMemoryError:
            return True
        except RuntimeError:
            return False
        return True

    def burn_in(self) -> None:
        """Long enough for the clock to climb and for NVML to tell of it."""
        import torch

        x = torch.randn(4096, 4096, device=self.torch_device, dtype=torch.float16)
        until = time.monotonic() + BURN_IN_S
        while time.monotonic() < until:
            for _ in range(20):
                x @ x
            self.synchronise()


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
