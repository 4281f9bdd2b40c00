"""Whether a GPU can be traced and what a trace costs, found out in a process of its own.

Tracing attaches CUPTI to the process that does it, and Kineto leaves it attached (unless the
environment says ``TEARDOWN_CUPTI=1``): whoever only asks should not carry it from then on.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass

TRACES, CALLS = 10, 10
LONGEST_S = 120.0
"""For importing torch from a cold disk, opening the device and tracing a little."""


@dataclass(frozen=True)
class Tracing:
    """``why_not`` is empty where tracing works; ``batch_ms`` is what timing ten small calls takes,
    traced and read: the floor of a visit's cost."""

    why_not: str
    batch_ms: float | None = None


def ask(index: int) -> Tracing:
    """About the CUDA device of that index. Never raises; a process that dies is an answer too."""
    command = [sys.executable, "-m", "gacprof.measure.tracing", str(index)]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_S)
    except subprocess.TimeoutExpired:
        return Tracing(f"it did not answer within {LONGEST_S:g} s")
    except OSError as error:
        return Tracing(f"{sys.executable} does not run: {error}")
    try:
        return Tracing(**json.loads(told.stdout.strip().splitlines()[-1]))
    except (ValueError, IndexError, TypeError):
        last = [line for line in told.stderr.splitlines() if line.strip()][-1:] or ["no message"]
        return Tracing(f"the process that tried ended with code {told.returncode}: {last[0]}")


def _try(index: int) -> Tracing:
    import torch

    from gacprof.errors import MeasurementError
    from gacprof.measure.cuda import CudaDevice
    from gacprof.measure.cuda_work import TracedWork, first_line

    try:
        device = CudaDevice(index)
        if device.why_not_traced:
            return Tracing(device.why_not_traced)
        x = torch.ones(1 << 16, device=device.torch_device)
        work = TracedWork(device, lambda: x + x, cold=False)
        started = time.perf_counter()
        for _ in range(TRACES):
            work.time(CALLS)
        return Tracing("", round((time.perf_counter() - started) / TRACES * 1e3, 2))
    except (RuntimeError, MeasurementError) as error:
        return Tracing(first_line(error))


if __name__ == "__main__":
    print(json.dumps(asdict(_try(int(sys.argv[1])))))
