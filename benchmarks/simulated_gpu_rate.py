"""Points per second of a sweep on a simulated H100: what the host, launches and captures cost.

    python benchmarks/simulated_gpu_rate.py quick full --processes 1,3

The whole engine runs in this process; its clock adds the CPU time of our own code to the simulated
host's and device's, and leaves out what the simulation itself takes, its garbage too. A capture
costs 5 ms, a launch 5 µs, a new process 2 s, a cuDNN plan 0.44 s; ``bare_rate`` is without these
last two, which no sweep can change. Not a GPU's numbers: those of the way to it.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pandas  # noqa: F401 - before the clock starts, as a worker has torch by then
import scipy.sparse.csgraph  # noqa: F401

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "simulated"))
from simulated_gpu import gpu as simulation
from simulated_gpu import torch_side
from simulated_gpu.device import SimulatedDevice

from gacprof.sweeping import build_map_of, load_suite, run_sweep

START_NS = 2_000_000_000


class Clock:
    """Seconds since the start, the simulation's own work left out."""

    def __init__(self, device: SimulatedDevice) -> None:
        self._gpu = device._gpu
        self._inside, self._depth, self._entered = 0.0, 0, 0.0
        self._begun = time.process_time()

    def monotonic(self) -> float:
        return time.process_time() - self._begun - self._inside + self._gpu.host / 1e9

    def leave_out(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **more: Any) -> Any:
            if self._depth:
                return function(*args, **more)
            self._depth, before = 1, time.process_time()
            try:
                return function(*args, **more)
            finally:
                self._depth = 0
                self._inside += time.process_time() - before

        return timed


ENTRIES = [
    (torch_side.Kernels, ("__torch_function__",)),
    (torch_side.Storages, ("__torch_dispatch__", "_let_go")),
    (simulation.SimulatedGraph, ("capture_begin", "capture_end", "replay", "reset")),
    (simulation.SimulatedGpu, ("record", "sleep", "synchronise", "event")),
    (simulation.Profile, ("__enter__", "__exit__")),
]


class Restarting(SimulatedDevice):
    """A fresh process keeps nothing, and takes its time to start."""

    starts = 0

    def renew(self) -> None:
        self.starts += 1
        self.captures.forget()
        self.captures.open_sessions = 0
        for held in ("arenas", "tracer", "_other_memory", "_stream"):
            self.__dict__.pop(held, None)
        self._gpu._planned.clear()
        self._gpu.host += START_NS


def measured(name: str, processes: int, budget_s: float | None) -> dict[str, Any]:
    suite = load_suite(name)
    timing = suite.timing.model_copy(update={"processes": processes, "budget_s": budget_s})
    suite = suite.model_copy(update={"timing": timing})
    with ExitStack() as stack:
        device = stack.enter_context(Restarting())
        clock = Clock(device)
        for kind, names in ENTRIES:
            for each in names:
                wrapped = clock.leave_out(getattr(kind, each))
                stack.enter_context(patch.object(kind, each, _bound(wrapped)))
        now = SimpleNamespace(monotonic=clock.monotonic, time=time.time)
        stack.enter_context(patch("gacprof.sweeping.engine.time", now))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        gc.collect()
        gc.disable()
        stack.callback(gc.enable)
        begun = clock.monotonic()
        run = run_sweep(suite, device, folder / "run")
        gpu, seconds = device._gpu, clock.monotonic() - begun
        fixed = gpu.plans * gpu.plan_ns / 1e9 + device.starts * START_NS / 1e9
        return {
            "points": run.points, "seconds": seconds, "rate": run.points / seconds,
            "bare_rate": run.points / (seconds - fixed), "blocks": run.blocks,
            "undecided": run.undecided, "captures": gpu.captures,
            "capture_s": gpu.capturing_ns / 1e9, "plan_s": gpu.plans * gpu.plan_ns / 1e9,
            "trace_s": gpu.traces * gpu.trace_ns / 1e9, "starts": device.starts,
            "own_s": seconds - gpu.host / 1e9,
            "floor": build_map_of(folder / "run").floor,
        }  # fmt: skip


def _bound(function: Callable[..., Any]) -> Callable[..., Any]:
    """As a method: a plain function binds, a wrapper made by a class would not."""

    def method(self: Any, *args: Any, **more: Any) -> Any:
        return function(self, *args, **more)

    return method


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ask.add_argument("suites", nargs="*", default=["quick"])
    ask.add_argument("--processes", default="1,3")
    ask.add_argument("--budget", type=float, help="seconds; default: until all is decided")
    given = ask.parse_args()
    for name in given.suites:
        for processes in map(int, given.processes.split(",")):
            found = measured(name, processes, given.budget)
            row = {k: round(v, 4) if isinstance(v, float) else v for k, v in found.items()}
            print(name, f"processes {processes}:", row, flush=True)


if __name__ == "__main__":
    main()
