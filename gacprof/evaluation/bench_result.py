"""What a bench found, as values: raw timings kept, statistics beside them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from gacprof.core.points import Environment

Verdict = Literal["reference", "identical", "faster", "slower", "no difference shown", "undecided"]


@dataclass(frozen=True)
class Timing:
    """One model at one workload. Microseconds: of a prefill, of one decode step.

    ``latency_us`` is fitted (:mod:`gacprof.evaluation.comparison`), with its 95 % interval from
    ``low_us`` to ``high_us``. ``timings_us`` are the raw timings, the same number from each round
    in order. ``ratio`` is (low, ratio, high) of this model's time over the reference's; below 1
    is faster. Its interval is simultaneous: 95 % for all verdicts of the bench together. None for
    the reference itself.
    """

    model: str
    workload: str
    kind: Literal["prefill", "decode"]
    tokens: int
    low_us: float
    latency_us: float
    high_us: float
    timings_us: tuple[float, ...]
    verdict: Verdict
    ratio: tuple[float, float, float] | None = None


@dataclass(frozen=True)
class Replicate:
    """The reference against itself at one workload: the bench's own A/A comparison.

    ``ratio`` is as a :class:`Timing`'s, with its own 95 % interval. ``spread`` is the largest
    difference that the interval allows, as a share: none up to that is claimed of any model.
    """

    workload: str
    ratio: tuple[float, float, float]
    spread: float
    timings_us: tuple[float, ...]


@dataclass(frozen=True)
class BenchResult:
    """All timings, raw ones kept. ``models`` are names, told apart, the reference first;
    ``sources`` the paths behind them; ``parameters`` are in the same order. ``busy`` is the share
    of a decode step that a GPU computed, by model, where a profiler told."""

    models: tuple[str, ...]
    parameters: tuple[int, ...]
    dtype: str
    batch: int
    decode_steps: int
    rounds: int
    timings: tuple[Timing, ...]
    replicates: tuple[Replicate, ...]
    environment: Environment
    timer: str
    threads_bound: bool = False
    busy: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = field(default=())
    sources: tuple[str, ...] = ()

    def of(self, model: str, workload: str) -> Timing:
        """The timing of a model at ``prefill 128``, ``decode 128`` … Raises ``KeyError``."""
        for timing in self.timings:
            if (timing.model, timing.workload) == (model, workload):
                return timing
        raise KeyError((model, workload))

    @property
    def spread(self) -> float:
        """The largest A/A spread of any workload."""
        return max(replicate.spread for replicate in self.replicates)

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
            "threads_bound": self.threads_bound,
            "timings": [asdict(timing) for timing in self.timings],
            "replicates": [asdict(replicate) for replicate in self.replicates],
            "busy": dict(self.busy),
            "environment": self.environment.as_dict(),
            "notes": list(self.notes),
        }
