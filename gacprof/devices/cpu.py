"""The CPU as a device to sweep: a monotonic clock around each call, threads bound to cores."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress

from gacprof import operators
from gacprof.core.errors import MeasurementError, first_line
from gacprof.core.points import Point
from gacprof.core.tasks import no_collection
from gacprof.devices.device import BlockTimes, Device, Session, Slot, TimedCall
from gacprof.devices.environment import cpu_environment, memory_bytes
from gacprof.devices.memory import Arenas, BoundCall
from gacprof.devices.threads import ComputeThreads, bound_threads, disturbed, longest_wait_us
from gacprof.operators.base import operands_from

WAKE_S, AWAKE_S = 0.004, 0.001
"""After a pause longer than the second, calls are slower by 6 % at first, and as fast as later ones
after about ten; so the first ones, that long, are not recorded."""
FIRST_CALLS_S = 1.0
BURN_IN_S = 0.2
MEMORY_SHARE = 0.25
"""Of the machine's memory, at most this for cold operands."""


class CpuDevice(Device):
    timer = "cpu-monotonic"

    def __init__(self) -> None:
        import torch

        self.environment = cpu_environment()
        self._arenas = Arenas(torch.device("cpu"))
        self._held = ExitStack()
        self.threads: ComputeThreads | None = None
        self._called_at = float("-inf")
        """When the latest block ended, of whichever session (s, of ``perf_counter``)."""

    def session(self, slots: Sequence[Slot], reuse_bytes: int = 0) -> Session:
        if self.threads is None:
            self.threads = self._held.enter_context(bound_threads())
        reuse = min(reuse_bytes, int(MEMORY_SHARE * memory_bytes()))
        session = CpuSession(self, [self._prepare(slot, reuse) for slot in slots])
        session.first_calls()
        return session

    def mixed(self, wanted: Sequence[tuple[Session, int]]) -> BlockTimes:
        return self.in_turn([(s, slot) for s, slot in wanted if isinstance(s, CpuSession)])

    def in_turn(self, wanted: Sequence[tuple[CpuSession, int]]) -> BlockTimes:
        """These slots, called in this order; the result's slots are places in ``wanted``."""
        import torch

        taken: list[tuple[int, float, float]] = []
        failed: dict[int, str] = {}
        with no_collection(), torch.inference_mode():
            self._wake(wanted)
            for place, (session, slot) in enumerate(wanted):
                try:
                    taken.append((place, *session.one(slot)))
                except Exception as error:  # an operator may raise anything
                    failed[place] = first_line(error)
        self._called_at = time.perf_counter()
        flags = disturbed([call[1] for call in taken], [call[2] for call in taken])
        calls = (TimedCall(*call[:2], flag) for call, flag in zip(taken, flags, strict=True))
        return BlockTimes(tuple(calls), failed)

    def _wake(self, wanted: Sequence[tuple[CpuSession, int]]) -> None:
        """Unrecorded calls, one at least: what ran before may have filled the cache. From the last
        on, so that the first call recorded does not follow itself."""
        now = time.perf_counter()
        until = now + (WAKE_S if now - self._called_at > AWAKE_S else 0)
        for session, slot in itertools.cycle(reversed(wanted)):
            with suppress(Exception):  # the recorded call fails too
                session.one(slot)
            if time.perf_counter() > until:
                return

    def close(self) -> None:
        """Release the threads again."""
        self._held.close()
        self.threads = None

    def _prepare(self, slot: Slot, reuse_bytes: int) -> Callable[[], BoundCall] | str:
        """Binds the slot's next call to its operands; the reason where it cannot be prepared."""
        import torch

        try:
            self._check(slot.point)
            with operands_from(self._arenas.view):
                operator = operators.get(slot.point.operator)
                prepared = operator.prepare(slot.point, torch.device("cpu"))
            cold = slot.point.flag.get("cache") == "cold"
            return self._arenas.place(prepared, slot.replicate, cold, reuse_bytes).bind
        except Exception as error:  # an operator may raise anything
            return "out of memory" if isinstance(error, MemoryError) else first_line(error)

    @staticmethod
    def _check(point: Point) -> None:
        if point.dtype == "tf32":
            raise MeasurementError("tf32 is a mode of CUDA tensor cores; a CPU has none")
        needed = operators.get(point.operator).bytes_moved(point)
        if needed > memory_bytes() // 2:
            raise MeasurementError(
                f"the operands need {needed / 2**30:.1f} GiB, "
                "more than half of this machine's memory"
            )

    def burn_in(self) -> None:
        import torch

        x = torch.randn(512, 512)
        until = time.monotonic() + BURN_IN_S
        while time.monotonic() < until:
            x @ x


class CpuSession(Session):
    """Calls around which the clock is read, each ready before it is."""

    def __init__(self, device: CpuDevice, slots: Sequence[Callable[[], BoundCall] | str]) -> None:
        self._device = device
        self._bind = [slot if callable(slot) else None for slot in slots]
        self.failed: Mapping[int, str] = {
            place: slot for place, slot in enumerate(slots) if isinstance(slot, str)
        }

    def first_calls(self) -> None:
        """One unrecorded call of each slot: the first one of a shape in a process also makes its
        kernel (oneDNN: up to three times a short call). Calls so long that they fill
        :data:`FIRST_CALLS_S` do not show that."""
        import torch

        until = time.perf_counter() + FIRST_CALLS_S
        with torch.inference_mode():
            for slot, bind in enumerate(self._bind):
                if bind is not None and time.perf_counter() < until:
                    with suppress(Exception):  # the recorded call will tell
                        self.one(slot)

    def block(self, order: Sequence[int]) -> BlockTimes:
        times = self._device.in_turn([(self, slot) for slot in order])
        calls = tuple(timed._replace(slot=order[timed.slot]) for timed in times.calls)
        return BlockTimes(calls, {order[place]: why for place, why in times.failed.items()})

    def one(self, slot: int) -> tuple[float, float]:
        """A call of that slot: how long it took, and how long it waited for a core (µs)."""
        bind, threads = self._bind[slot], self._device.threads
        assert bind is not None and threads is not None
        call, clock = bind(), time.perf_counter_ns
        before = threads.waits_ns()
        start = clock()
        call()
        taken = (clock() - start) / 1e3
        return taken, longest_wait_us(before, threads.waits_ns())
