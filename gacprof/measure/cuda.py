"""A CUDA GPU as a device to sweep: events behind a flush and a short sleep on the device.

The sleep keeps the stream busy while the host enqueues the call, so that the launch gap lies
outside the events' window; the flush before it makes every call cold where the point says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gacprof import operators
from gacprof.errors import MeasurementError
from gacprof.measure.environment import cuda_environment
from gacprof.measure.telemetry import Telemetry
from gacprof.points import Environment, Point

if TYPE_CHECKING:
    import torch

WARM_UP_CALLS = 3
FLUSH_FACTOR = 2  # times the L2 size; an undersized flush reorders results
ASSUMED_L2_BYTES = 128 << 20
SLEEP_CYCLES = 40_000  # about 20 µs at 2 GHz: longer than a launch, shorter than a flush
MEMORY_FRACTION = 0.9


class CudaWork:
    def __init__(self, device: CudaDevice, call: Callable[[], Any], cold: bool) -> None:
        self._device = device
        self._call = call
        self._cold = cold

    def warm_up(self) -> float:
        for _ in range(WARM_UP_CALLS):
            self._call()
        return self.time(1)[0]

    def time(self, repeats: int) -> list[float]:
        import torch

        with torch.cuda.device(self._device.index):
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

    def kernels(self) -> Sequence[str]:
        """One traced call. Kineto's events are read directly: its averages cost far more."""
        import torch
        from torch.profiler import ProfilerActivity, profile

        try:
            with profile(activities=[ProfilerActivity.CUDA]) as traced:
                self._call()
                self._device.synchronise()
            events = traced.profiler.kineto_results.events()
        except (RuntimeError, AttributeError):
            return ()
        cuda = torch.autograd.DeviceType.CUDA
        ours = [event for event in events if event.device_type() == cuda]
        return tuple(event.name() for event in sorted(ours, key=lambda event: event.start_ns()))

    def clock_mhz(self) -> int | None:
        return self._device.telemetry.sm_clock_mhz()

    def remark(self) -> str:
        return ""

    def throttled(self) -> str:
        return self._device.telemetry.throttle_reason()


class CudaDevice:
    timer = "cuda-events"

    def __init__(self, index: int = 0) -> None:
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
        return CudaWork(self, call, cold=point.flag.get("cache") == "cold")

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
