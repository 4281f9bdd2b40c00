"""Whether a GPU can be traced and its calls captured, found out in a process of its own.

Tracing attaches CUPTI to the process that does it, and Kineto leaves it attached (unless the
environment says ``TEARDOWN_CUPTI=1``): whoever only asks should not carry it from then on.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gacprof.devices.cuda import CudaDevice

TRACES, CALLS = 10, 10
LONGEST_S = 120.0
"""For importing torch from a cold disk, opening the device and tracing a little."""


@dataclass(frozen=True)
class Tracing:
    """``why_not`` is empty where tracing works; ``batch_ms`` is what tracing ten small calls takes.
    ``no_graph`` is empty where calls can be timed in CUDA graphs."""

    why_not: str
    batch_ms: float | None = None
    no_graph: str = ""


def ask(index: int) -> Tracing:
    """About the CUDA device of that index. Never raises; a process that dies is an answer too."""
    command = [sys.executable, "-m", "gacprof.devices.tracing", str(index)]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_S)
    except subprocess.TimeoutExpired:
        return _nothing(f"it did not answer within {LONGEST_S:g} s")
    except OSError as error:
        return _nothing(f"{sys.executable} does not run: {error}")
    try:
        return Tracing(**json.loads(told.stdout.strip().splitlines()[-1]))
    except (ValueError, IndexError, TypeError):
        last = [line for line in told.stderr.splitlines() if line.strip()][-1:] or ["no message"]
        return _nothing(f"the process that tried ended with code {told.returncode}: {last[0]}")


def _nothing(why_not: str) -> Tracing:
    return Tracing(why_not, no_graph=why_not)


def _try(index: int) -> Tracing:
    from gacprof.core.errors import MeasurementError, first_line
    from gacprof.devices.cuda import CudaDevice

    try:
        device = CudaDevice(index)
        with device.active():
            why_not, batch_ms = _traced(device)
            return Tracing(why_not, batch_ms, _no_graph(device))
    except (RuntimeError, MeasurementError) as error:
        return _nothing(first_line(error))


def _traced(device: CudaDevice) -> tuple[str, float | None]:
    """Why small calls cannot be traced, and what tracing ten of them takes."""
    import torch

    x = torch.ones(1 << 16, device=device.torch_device)
    batch: list[Callable[[], object]] = [lambda: x + x] * (CALLS // 2)  # each is called twice
    device.tracer.typical_calls(batch)
    started = time.perf_counter()
    for _ in range(TRACES):
        device.tracer.typical_calls(batch)
    if device.tracer.why_not:
        return device.tracer.why_not, None
    return "", round((time.perf_counter() - started) / TRACES * 1e3, 2)


def _no_graph(device: CudaDevice) -> str:
    """Why small calls cannot be timed in a CUDA graph; empty if they can."""
    import torch

    from gacprof.core.errors import MeasurementError, first_line
    from gacprof.devices.cuda_graph import GraphRun, Work

    x = torch.ones(1 << 16, device=device.torch_device)
    try:
        run = GraphRun(
            Work((lambda: x + x,) * CALLS, before=lambda: x + x),
            torch.cuda.graph_pool_handle(),
            device.index,
        )
        run.launch()
        device.synchronise()
        return "" if run.total_us() > 0 else "its events tell no time"
    except (RuntimeError, MeasurementError) as error:
        return first_line(error)


if __name__ == "__main__":
    print(json.dumps(asdict(_try(int(sys.argv[1])))))
