"""How much of a decode step a GPU computes, and how much it waits for the host.

An eager decode step of a small model launches a thousand kernels; the host needs 15 to 25 ms for
that, the GPU perhaps 5. Then the step's time is the host's, and dims make no difference to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from gacprof.core.errors import MeasurementError
from gacprof.devices.kineto import Traced, trace
from gacprof.evaluation.workloads import Clock, Runner

ENOUGH = 0.9
"""Below that share no verdict is given."""
STEPS = 5

Tracer = Callable[[Callable[[], object]], Sequence[Traced]]


def busy_share(runner: Runner, clock: Clock, tracer: Tracer = trace) -> float | None:
    """Time of the kernels of :data:`STEPS` calls over the time of as many untraced calls.

    None on a CPU, and where the profiler gives nothing.
    """
    if clock.device.type != "cuda":
        return None
    whole = sum(runner.time(clock).us for _ in range(STEPS))
    computed = 0.0
    try:
        for _ in range(STEPS):
            with torch.inference_mode():
                runner.prepare()
                events = tracer(lambda: _finish(runner, clock.device))
            computed += covered_us(events)
    except MeasurementError:
        return None
    return min(1.0, computed / whole) if computed else None


def covered_us(events: Sequence[Traced]) -> float:
    """The time during which anything ran; kernels that overlap count once."""
    total, end = 0, 0
    for event in sorted(events, key=lambda e: e.start_ns):
        total += max(0, event.end_ns - max(event.start_ns, end))
        end = max(end, event.end_ns)
    return total / 1e3


def _finish(runner: Runner, device: torch.device) -> None:
    runner.call()
    torch.cuda.synchronize(device)
