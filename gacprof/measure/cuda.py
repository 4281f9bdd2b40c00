"""A CUDA GPU as a device to sweep.

Timestamps and kernel names come from one traced pass (:mod:`.kineto`). Where the driver lets
no process trace, events take their place. How one call is timed is :mod:`.cuda_work`'s.
"""

from __future__ import annotations

import time
from functools import cached_property
from typing import TYPE_CHECKING

from gacprof import operators
from gacprof.errors import MeasurementError
from gacprof.measure.cuda_work import CudaWork, TracedWork, first_line, out_of_memory
from gacprof.measure.environment import cuda_environment
from gacprof.measure.telemetry import Telemetry
from gacprof.points import Environment, Point

if TYPE_CHECKING:
    import torch

FLUSH_FACTOR = 2  # times the L2 size; an undersized flush reorders results
ASSUMED_L2_BYTES = 128 << 20
MEMORY_FRACTION = 0.9
BURN_IN_S = 0.5
EVENTS, KINETO = "cuda-events", "kineto"


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
