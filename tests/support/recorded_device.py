"""A device without hardware: times by a function, or recorded blocks played again.

It is how the engine is tested: planted cliffs, recorded noise, points that fail.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gacprof.core.errors import first_line
from gacprof.core.points import Environment, Point
from gacprof.devices.device import BlockTimes, Device, Session, Slot, TimedCall

Answer = Callable[[Point], float]
"""A point's next time in microseconds; raises to make the call fail."""


class RecordedDevice(Device):
    """Answers every call by a function; ``kernels`` likewise names what would have run."""

    timer = "recorded"

    def __init__(
        self,
        answer: Answer,
        environment: Environment | None = None,
        kernels: Callable[[Point], Sequence[str]] = lambda point: (),
    ) -> None:
        self._answer, self._kernels = answer, kernels
        self.environment = environment or Environment("recorded", "recorded", "none")

    def session(self, slots: Sequence[Slot], reuse_bytes: int = 0) -> Session:
        named = {i: tuple(self._kernels(slot.point)) for i, slot in enumerate(slots)}
        return RecordedSession(slots, self._answer, {i: one for i, one in named.items() if one})


class RecordedSession(Session):
    """A point whose first call fails cannot be prepared, as on a real device."""

    def __init__(
        self,
        slots: Sequence[Slot],
        answer: Answer,
        kernels: Mapping[int, tuple[str, ...]] | None = None,
    ) -> None:
        self._slots, self._answer, self._kernels = slots, answer, kernels or {}
        self.failed = {}

    def block(self, order: Sequence[int]) -> BlockTimes:
        calls, failed = [], {}
        for slot in order:
            try:
                calls.append(TimedCall(slot, float(self._answer(self._slots[slot].point))))
            except Exception as error:  # as an operator may raise anything
                failed[slot] = first_line(error)
        return BlockTimes(tuple(calls), failed)

    def kernels(self) -> Mapping[int, tuple[str, ...]]:
        return self._kernels
