"""A recording as a device: sweeps replayed from samples or from a function, without hardware.

It is how the engine is tested, and how a finished sweep can be run again under another
strategy at no cost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gacprof.errors import MeasurementError
from gacprof.points import Environment, Point, Sample

Answer = Callable[[Point, int], Sequence[float]]
"""(point, how many) → that many timings in microseconds; raises to make the point fail."""


class RecordedWork:
    def __init__(self, point: Point, answer: Answer, kernels: Sequence[str]) -> None:
        self._point = point
        self._answer = answer
        self._kernels = kernels

    def warm_up(self) -> float:
        return self.time(1)[0]

    def time(self, repeats: int) -> list[float]:
        return [float(value) for value in self._answer(self._point, repeats)]

    def kernels(self) -> Sequence[str]:
        return self._kernels

    def clock_mhz(self) -> int | None:
        return None

    def remark(self) -> str:
        return ""

    def throttled(self) -> str:
        return ""


class RecordedDevice:
    """Answers every point by a function; ``kernels`` likewise names what would have run."""

    timer = "recorded"

    def __init__(
        self,
        answer: Answer,
        environment: Environment | None = None,
        kernels: Callable[[Point], Sequence[str]] = lambda point: (),
    ) -> None:
        self._answer = answer
        self._kernels = kernels
        self.environment = environment or Environment("recorded", "recorded", "none")

    @classmethod
    def replaying(cls, samples: Sequence[Sample], environment: Environment) -> RecordedDevice:
        """Answer from samples, cycling through a point's timings; unknown points fail."""
        timings: dict[str, list[float]] = {}
        kernels: dict[str, tuple[str, ...]] = {}
        for sample in samples:
            timings.setdefault(sample.point.id, []).extend(sample.timings_us)
            kernels.setdefault(sample.point.id, sample.kernels)
        turn: dict[str, int] = {}

        def answer(point: Point, repeats: int) -> list[float]:
            known = timings.get(point.id)
            if not known:
                raise MeasurementError(f"the recording holds no timings of {point}")
            start = turn.get(point.id, 0)
            turn[point.id] = start + repeats
            return [known[(start + i) % len(known)] for i in range(repeats)]

        return cls(answer, environment, lambda point: kernels.get(point.id, ()))

    def prepare(self, point: Point) -> RecordedWork:
        return RecordedWork(point, self._answer, self._kernels(point))

    def burn_in(self) -> None:
        pass
