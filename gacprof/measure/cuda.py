"""A CUDA GPU as a device to sweep: device timestamps, or events behind a short sleep.

Timestamps and kernel names come from one traced pass (:mod:`.kineto`). Where the driver lets
no process trace, events take their place: the sleep before them keeps the stream busy while
the host enqueues the call, so that the launch gap lies outside their window. The flush before
the sleep makes every call cold where the point says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gacprof import operators
from gacprof.errors import MeasurementError
from gacprof.measure.environment import cuda_environment
from gacprof.measure.kineto import calls, span_us, trace
from gacprof.measure.telemetry import Telemetry
from gacprof.points import Environment, Point

if TYPE_CHECKING:
    import torch

WARM_UP_CALLS = 3
FLUSH_FACTOR = 2  # times the L2 size; an undersized flush reorders results
ASSUMED_L2_BYTES = 128 << 20
SLEEP_CYCLES = 40_000  # about 20 µs at 2 GHz: longer than a launch, shorter than a flush
CLOSING_CYCLES = 1_000
MEMORY_FRACTION = 0.9
EVENTS, KINETO = "cuda-events", "kineto"


class CudaWork:
    """One prepared call, timed by events; its kernels come from one traced call more."""

    def __init__(self, device: CudaDevice, call: Callable[[], Any], cold: bool) -> None:
        self._device = device
        self._call = call
        self._cold = cold

    def warm_up(self) -> float:
        with self._explained():
            for _ in range(WARM_UP_CALLS):
                self._call()
            return self.time(1)[0]

    def time(self, repeats: int) -> list[float]:
        import torch

        with torch.cuda.device(self._device.index), self._explained():
            pairs = [self._one() for _ in range(repeats)]
            self._device.synchronise()
        return [start.elapsed_time(end) * 1e3 for start, end in pairs]

    def _one(self) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        import torch

        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        if self._cold:
            self._device.flush()
        torch.cuda._sleep(SLEEP_CYCLES)
        start.record()
        self._call()
        end.record()
        return start, end

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Running out of memory is a point's failure like any other, and must not linger."""
        import torch

        try:
            yield
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
            raise MeasurementError("out of GPU memory") from None

    def kernels(self) -> Sequence[str]:
        def run() -> None:
            self._call()
            self._device.synchronise()

        try:
            return tuple(e.name for e in sorted(trace(run), key=lambda e: e.start_ns))
        except (RuntimeError, MeasurementError):
            return ()

    def clock_mhz(self) -> int | None:
        return self._device.telemetry.sm_clock_mhz()

    def remark(self) -> str:
        return ""

    def reading(self) -> dict[str, Any]:
        return self._device.telemetry.reading()

    def throttled(self) -> str:
        return self._device.telemetry.throttle_reason()


class TracedWork(CudaWork):
    """The same call, timed by the device's own timestamps."""

    _kernels: tuple[str, ...] = ()

    def time(self, repeats: int) -> list[float]:
        import torch

        def run() -> None:
            for _ in range(repeats):
                if self._cold:
                    self._device.flush()
                torch.cuda._sleep(SLEEP_CYCLES)
                self._call()
                torch.cuda._sleep(CLOSING_CYCLES)
            self._device.synchronise()

        with torch.cuda.device(self._device.index), self._explained():
            traced = calls(trace(run), repeats)
        self._kernels = tuple(event.name for event in traced[-1])
        return [span_us(call) for call in traced]

    def kernels(self) -> Sequence[str]:
        return self._kernels


class CudaDevice:
    """``timer`` is ``auto``, ``kineto`` or ``cuda-events``; auto takes what works, in this order.

    Raises :class:`MeasurementError` where there is no such GPU, or it cannot be traced though
    that was asked for.
    """

    def __init__(self, index: int = 0, timer: str = "auto") -> None:
        import torch

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
        if timer not in ("auto", KINETO, EVENTS):
            raise MeasurementError(f"unknown timer '{timer}': use auto, {KINETO} or {EVENTS}")
        why_not = "" if timer == EVENTS else self._cannot_trace()
        if timer == KINETO and why_not:
            raise MeasurementError(f"this GPU cannot be traced: {why_not}")
        self.timer = EVENTS if timer == EVENTS or why_not else KINETO

    def _cannot_trace(self) -> str:
        """Why a traced call gives no timestamps (no permission, no CUPTI); empty if it does."""
        import torch

        x = torch.ones(1 << 16, device=self.torch_device)
        try:
            TracedWork(self, lambda: x + x, cold=False).time(2)
        except (RuntimeError, MeasurementError) as error:
            return str(error).strip().split("\n")[0]
        return ""

    @cached_property
    def environment(self) -> Environment:
        return cuda_environment(self.index, self.telemetry.driver())

    @cached_property
    def _flush_buffer(self) -> torch.Tensor:
        import torch

        l2 = self.environment.facts.get("l2_bytes") or ASSUMED_L2_BYTES
        return torch.empty(FLUSH_FACTOR * l2, dtype=torch.int8, device=self.torch_device)

    def flush(self) -> None:
        self._flush_buffer.zero_()

    def synchronise(self) -> None:
        import torch

        torch.cuda.synchronize(self.index)

    def prepare(self, point: Point) -> CudaWork:
        import torch

        operator = operators.get(point.operator)
        self._check_memory(operator.bytes_moved(point))
        torch.backends.cuda.matmul.allow_tf32 = point.dtype == "tf32"
        try:
            call = operator.prepare(point, self.torch_device)
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
            raise MeasurementError(f"{point}: out of GPU memory") from None
        except RuntimeError as error:
            raise MeasurementError(f"{point}: {str(error).strip().splitlines()[0]}") from None
        kind = TracedWork if self.timer == KINETO else CudaWork
        return kind(self, call, cold=point.flag.get("cache") == "cold")

    def _check_memory(self, operand_bytes: int) -> None:
        import torch

        free, _ = torch.cuda.mem_get_info(self.index)
        if operand_bytes > MEMORY_FRACTION * free:
            raise MeasurementError(
                f"the operands need {operand_bytes / 2**30:.1f} GiB, "
                f"the GPU has {free / 2**30:.1f} GiB free"
            )

    def burn_in(self) -> None:
        import torch

        x = torch.randn(4096, 4096, device=self.torch_device, dtype=torch.float16)
        for _ in range(200):
            x @ x
        self.synchronise()
