"""The CPU as a device to sweep: the monotonic clock around each call."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from gacprof import operators
from gacprof.errors import MeasurementError
from gacprof.measure.environment import cpu_environment, last_level_cache, memory_bytes
from gacprof.points import Environment, Point

WARM_UP_CALLS = 3
COLD_COPIES_AT_MOST = 512
ASSUMED_CACHE_BYTES = 32 << 20  # where the kernel reports no cache sizes


class CpuWork:
    """Calls over one set of operands (warm), or over so many that none is still in cache."""

    def __init__(self, calls: Sequence[Callable[[], Any]]) -> None:
        self._calls = calls
        self._next = 0

    def _call(self) -> Callable[[], Any]:
        self._next = (self._next + 1) % len(self._calls)
        return self._calls[self._next]

    def warm_up(self) -> float:
        for _ in range(WARM_UP_CALLS):
            self._call()()
        return self.time(1)[0]

    def time(self, repeats: int) -> list[float]:
        clock = time.perf_counter_ns
        taken: list[float] = []
        collecting = gc.isenabled()
        gc.disable()  # a collection inside the window would be timed as the operator's
        try:
            for _ in range(repeats):
                call = self._call()
                start = clock()
                call()
                taken.append((clock() - start) / 1e3)
        finally:
            if collecting:
                gc.enable()
        return taken

    def kernels(self) -> Sequence[str]:
        return ()

    def clock_mhz(self) -> int | None:
        return None

    def throttled(self) -> str:
        return ""


class CpuDevice:
    timer = "cpu-monotonic"

    @cached_property
    def environment(self) -> Environment:
        return cpu_environment()

    def prepare(self, point: Point) -> CpuWork:
        import torch

        operator = operators.get(point.operator)
        if point.dtype == "tf32":
            raise MeasurementError("tf32 is a mode of CUDA tensor cores; a CPU has none")
        copies = self._copies(operator.bytes_moved(point), bool(point.flag.get("cache") == "cold"))
        device = torch.device("cpu")
        try:
            return CpuWork([operator.prepare(point, device) for _ in range(copies)])
        except RuntimeError as error:
            raise MeasurementError(f"{point}: {_first_line(error)}") from None

    @staticmethod
    def _copies(operand_bytes: int, cold: bool) -> int:
        """One set of operands, or enough that a round through them exceeds the cache twice."""
        if operand_bytes > memory_bytes() // 2:
            raise MeasurementError(
                f"the operands need {operand_bytes / 2**30:.1f} GiB, "
                "more than half of this machine's memory"
            )
        if not cold:
            return 1
        cache = last_level_cache() or ASSUMED_CACHE_BYTES
        return min(COLD_COPIES_AT_MOST, 2 * cache // max(1, operand_bytes) + 2)

    def burn_in(self) -> None:
        import torch

        x = torch.randn(512, 512)
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            x @ x


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0]
