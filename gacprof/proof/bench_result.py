"""What a bench found, as values: raw timings kept, statistics beside them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from gacprof.points import Environment


@dataclass(frozen=True)
class Timing:
    """One model at one workload. Microseconds: of a prefill, of one decode step on average.

    ``ratio`` is (low, median, high) of this model's time over the first model's, round by
    round; below 1 is faster. None for the first model itself.
    """

    model: str
    workload: str
    kind: Literal["prefill", "decode"]
    tokens: int
    low_us: float
    median_us: float
    high_us: float
    timings_us: tuple[float, ...]
    ratio: tuple[float, float, float] | None = None

    @property
    def verdict(self) -> str:
        """``faster``, ``slower`` or ``no difference shown``, against the first model."""
        if self.ratio is None:
            return "reference"
        low, _, high = self.ratio
        return "faster" if high < 1 else "slower" if low > 1 else "no difference shown"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"verdict": self.verdict}


@dataclass(frozen=True)
class BenchResult:
    """All timings, raw ones kept. ``models`` are names, told apart; ``sources`` the paths behind
    them; ``parameters`` are in the same order."""

    models: tuple[str, ...]
    parameters: tuple[int, ...]
    dtype: str
    batch: int
    decode_steps: int
    rounds: int
    timings: tuple[Timing, ...]
    environment: Environment
    timer: str
    notes: tuple[str, ...] = field(default=())
    sources: tuple[str, ...] = ()

    def of(self, model: str, workload: str) -> Timing:
        """The timing of a model at ``prefill 128``, ``decode 128`` … Raises ``KeyError``."""
        for timing in self.timings:
            if (timing.model, timing.workload) == (model, workload):
                return timing
        raise KeyError((model, workload))

    def as_dict(self) -> dict[str, Any]:
        return {
            "models": list(self.models),
            "sources": list(self.sources),
            "parameters": list(self.parameters),
            "dtype": self.dtype,
            "batch": self.batch,
            "decode_steps": self.decode_steps,
            "rounds": self.rounds,
            "timer": self.timer,
            "timings": [timing.as_dict() for timing in self.timings],
            "environment": self.environment.as_dict(),
            "notes": list(self.notes),
        }
