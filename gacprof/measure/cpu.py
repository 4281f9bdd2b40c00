"""The CPU as a device to sweep: the monotonic clock around each call."""

from __future__ import annotations

import gc
import resource
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gacprof import operators
from gacprof.errors import MeasurementError
from gacprof.measure.environment import cpu_environment, last_level_cache, memory_bytes
from gacprof.points import Environment, Point

if TYPE_CHECKING:
    import torch

WARM_UP_CALLS = 3
ATTEMPTS = 4
COLD_COPIES_AT_MOST = 512
ASSUMED_CACHE_BYTES = 32 << 20  # where the kernel reports no cache sizes


Operands = tuple["torch.Tensor | None", ...]


class CpuWork:
    """Calls over one set of operands (warm), or over so many that none is still in cache."""

    def __init__(self, call: Callable[..., Any], operands: Sequence[Operands]) -> None:
        self._call = call
        self._operands = operands
        self._next = 0
        self._calls = 0
        self._preempted = 0

    def _turn(self) -> Operands:
        self._next = (self._next + 1) % len(self._operands)
        return self._operands[self._next]

    def warm_up(self) -> float:
        for _ in range(WARM_UP_CALLS):
            self._call(*self._turn())
        return self.time(1)[0]

    def time(self, repeats: int) -> list[float]:
        """Timings of calls that ran undisturbed, as far as can be.

        A call during which the system took a core from us says nothing of the operator; it
        is taken again, up to :data:`ATTEMPTS` times the number asked for, then kept as it is.
        """
        kept: list[float] = []
        disturbed: list[float] = []
        collecting = gc.isenabled()
        gc.disable()  # a collection inside the window would be timed as the operator's
        try:
            for _ in range(ATTEMPTS * repeats):
                if len(kept) == repeats:
                    break
                taken, preempted = self._one()
                (disturbed if preempted else kept).append(taken)
        finally:
            if collecting:
                gc.enable()
        self._calls += len(kept) + len(disturbed)
        self._preempted += len(disturbed)
        return kept + sorted(disturbed)[: repeats - len(kept)]

    def _one(self) -> tuple[float, bool]:
        """(µs, whether any of our threads lost its core meanwhile)."""
        operands, call, clock = self._turn(), self._call, time.perf_counter_ns
        before = preemptions()
        start = clock()
        call(*operands)
        taken = (clock() - start) / 1e3
        return taken, preemptions() != before

    def remark(self) -> str:
        if not self._preempted:
            return ""
        return f"{self._preempted} of {self._calls} calls were preempted by other processes"

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
            prepared = operator.prepare(point, device)
            return CpuWork(prepared.call, _copied(prepared.operands, copies))
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


def preemptions() -> int:
    """How often the system has taken a core from any thread of this process (getrusage(2))."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def _copied(operands: Operands, copies: int) -> list[Operands]:
    """The operands and copies of them, each in memory of its own."""
    more = [tuple(o if o is None else o.clone() for o in operands) for _ in range(copies - 1)]
    return [operands, *more]


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0]
