"""The A/A floor of a sweep beside what one would use instead: same points, same time.

    python benchmarks/noise.py                     # about 32 minutes
    python benchmarks/noise.py --seconds 20 --busy 0,1

The points are those of the demo's sweep (ranks of a factored Llama, bfloat16 where the CPU
multiplies it, else float32; prefill of 256 tokens and decode), a quarter of them twice. Every
method measures them all, replicates too, within the same time, twice, each time in a process of
its own. Printed are 95 % quantiles of |log ratio|, each pair weighed by what its curve contributes
to the model's time: ``within`` a run of a point and its replicate, and ``between`` the two runs of
a point and itself, which is what two runs call different though it is the same. With
``--busy`` so many processes that only count run beside it.

Peers: ``torch.utils.benchmark`` (blocked_autorange, median), Triton's ``do_bench`` rule (warm up
for a fifth of the time, then the mean), repeating in place (median, minimum), and the plainest
block design (every round all points of a curve in random order; lower-quartile polish).
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from gacprof.checkpoint import scan
from gacprof.core.points import LEVEL, curve_key
from gacprof.demonstrating.models import write_demo_checkpoint
from gacprof.devices.cpu import CpuDevice
from gacprof.devices.device import Slot
from gacprof.devices.environment import cpu_name, native_bfloat16
from gacprof.devices.worker import sweeper
from gacprof.stats.blocks import CurveBlocks
from gacprof.stats.fit import two_way
from gacprof.stats.noise import aa_floor
from gacprof.sweeping.curve import CurveState
from gacprof.sweeping.for_checkpoint import suite_for
from gacprof.sweeping.run import run_sweep
from gacprof.sweeping.store import read_blocks
from gacprof.sweeping.suite import CurvePlan, Suite

METHODS = ("blocks", "yardstick", "torch.utils.benchmark", "do_bench", "in place, median",
           "in place, minimum")  # fmt: skip
COUNT = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"
"""What a busy process does: it ends with the benchmark, however that ends."""
Found = dict[str, dict[Slot, float]]
"""Curve → slot → log µs."""


def demo_suite() -> Suite:
    with tempfile.TemporaryDirectory() as folder:
        inventory = scan(write_demo_checkpoint(Path(folder) / "model"))
    dtype = "bfloat16" if native_bfloat16() else "float32"
    return suite_for(inventory, (1, 256), dtype=dtype)


def states_of(suite: Suite) -> list[CurveState]:
    return [CurveState(plan, suite.timing) for plan in suite.curves("cpu")]


def by_blocks(suite: Suite, seconds: float) -> Found:
    """gacprof's sweep, its changes of process included; importing torch is left out for all."""
    with tempfile.TemporaryDirectory() as folder:
        with sweeper("cpu", processes=suite.timing.processes) as device:
            run_sweep(suite, device, Path(folder) / "run", budget_s=seconds)
        blocks = read_blocks(Path(folder) / "run")
    found: Found = {}
    blocks = [block for block in blocks if block.axis != LEVEL]
    keys = {curve_key(b.calls[0].point, b.axis) for b in blocks}
    for key in keys:
        of_it = [b for b in blocks if curve_key(b.calls[0].point, b.axis) == key]
        curve = CurveBlocks(of_it[0].axis, of_it)
        found[key] = dict(zip(curve.slots, curve.fit.effect.tolist(), strict=True))
    return found


Timing = Callable[[Callable[[], object], float], float]
"""(call, seconds for it) → µs."""


def by_slot(suite: Suite, seconds: float, measure: Timing) -> Found:
    """One slot after the other, in random order, each with its share of the time."""
    device = CpuDevice()
    states = states_of(suite)
    everything = [(state.plan.key, slot) for state in states for slot in state.slots]
    random.Random(0).shuffle(everything)
    until, found = time.monotonic() + seconds, dict[str, dict[Slot, float]]()
    for number, (key, slot) in enumerate(everything):
        bind = device._prepare(slot, suite.timing.reuse_mib << 20)
        if isinstance(bind, str):
            continue
        share = max(1e-4, (until - time.monotonic()) / (len(everything) - number))
        found.setdefault(key, {})[slot] = float(np.log(measure(lambda b=bind: b()(), share)))
    return found


def torch_timer(call: Callable[[], object], seconds: float) -> float:
    from torch.utils.benchmark import Timer

    timer = Timer("call()", globals={"call": call}, num_threads=_threads())
    return timer.blocked_autorange(min_run_time=0.8 * seconds).median * 1e6


def do_bench(call: Callable[[], object], seconds: float) -> float:
    _repeat(call, 0.2 * seconds)
    return float(np.mean(_repeat(call, 0.8 * seconds)))


def in_place(statistic: Callable[[list[float]], float]) -> Timing:
    def measure(call: Callable[[], object], seconds: float) -> float:
        call()
        return float(statistic(_repeat(call, seconds)))

    return measure


def _repeat(call: Callable[[], object], seconds: float) -> list[float]:
    times, until = [], time.perf_counter() + seconds
    while not times or time.perf_counter() < until:
        start = time.perf_counter_ns()
        call()
        times.append((time.perf_counter_ns() - start) / 1e3)
    return times


def by_yardstick(suite: Suite, seconds: float) -> Found:
    """Rounds over all curves, every slot once in random order; threads as the system puts them."""
    device = CpuDevice()
    states = states_of(suite)
    ready = [
        [device._prepare(slot, suite.timing.reuse_mib << 20) for slot in state.slots]
        for state in states
    ]
    rows: list[list[list[float]]] = [[] for _ in states]
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for curve in random.sample(range(len(states)), len(states)):
            binds = ready[curve]
            row = [0.0] * len(binds)
            for i in random.sample(range(len(binds)), len(binds)):
                call = binds[i]()  # type: ignore[operator]
                start = time.perf_counter_ns()
                call()
                row[i] = (time.perf_counter_ns() - start) / 1e3
            rows[curve].append(row)
            if time.monotonic() >= until:
                break
    return {
        state.plan.key: dict(zip(state.slots, two_way(np.log(taken))[0].tolist(), strict=True))
        for state, taken in zip(states, map(np.array, rows), strict=True)
        if len(taken)
    }


def _threads() -> int:
    import torch

    return torch.get_num_threads()


def measured(method: str, suite: Suite, seconds: float) -> Found:
    import torch

    with torch.inference_mode():
        if method == "blocks":
            return by_blocks(suite, seconds)
        if method == "yardstick":
            return by_yardstick(suite, seconds)
        ways: dict[str, Timing] = {
            "torch.utils.benchmark": torch_timer,
            "do_bench": do_bench,
            "in place, median": in_place(np.median),
            "in place, minimum": in_place(np.min),
        }
        return by_slot(suite, seconds, ways[method])


def floor_of(found: Found, curves: list[CurvePlan]) -> dict[str, float | None]:
    """The weighed and the plain floor, and how many pairs they rest on."""
    weight_of = {plan.key: plan.weight for plan in curves}
    differences, weights = [], []
    for key, effects in found.items():
        for slot, effect in effects.items():
            double = effects.get(Slot(slot.point, replicate=True))
            if not slot.replicate and double is not None and np.isfinite(effect - double):
                differences.append(effect - double)
                weights.append(weight_of[key] * float(np.exp(effect)))
    if not differences:
        return {"floor": None, "plain": None, "median": None, "pairs": 0}
    size = np.abs(differences)
    return {
        "floor": round(float(np.expm1(aa_floor(size, np.array(weights)))), 4),
        "plain": round(float(np.expm1(aa_floor(size))), 4),
        "median": round(float(np.expm1(np.median(size))), 4),
        "pairs": len(differences),
    }


def between(first: Found, second: Found, curves: list[CurvePlan]) -> float | None:
    """The weighed floor between two runs, each in processes of its own: how far apart a point's
    two latencies lie, both relative to its curve. A single process hides what is peculiar to it."""
    weight_of = {plan.key: plan.weight for plan in curves}
    differences, weights = [], []
    for key in first.keys() & second.keys():
        both = first[key].keys() & second[key].keys()
        apart = {slot: first[key][slot] - second[key][slot] for slot in both}
        level = np.nanmedian(list(apart.values()))
        for slot, difference in apart.items():
            if np.isfinite(difference):
                differences.append(difference - level)
                weights.append(weight_of[key] * float(np.exp(first[key][slot])))
    return round(float(np.expm1(aa_floor(differences, np.array(weights)))), 4) if weights else None


@contextmanager
def busy(count: int) -> Iterator[None]:
    """So many processes that only count."""
    running = [subprocess.Popen([sys.executable, "-c", COUNT]) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def run_once(method: str, seconds: float, file: Path) -> Found:
    """In a process of its own."""
    command = [sys.executable, __file__, "--one", method, "--seconds", str(seconds)]
    done = subprocess.run([*command, "--into", str(file)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    found: Found = pickle.loads(file.read_bytes())  # written by ourselves a moment ago
    return found


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ask.add_argument("--seconds", type=float, default=45.0, help="of each run of each method")
    ask.add_argument("--busy", default="0,1,2", help="numbers of busy processes")
    ask.add_argument("--methods", default="", help="of " + "; ".join(METHODS))
    ask.add_argument("--one", help=argparse.SUPPRESS)
    ask.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    given = ask.parse_args()
    suite = demo_suite()
    if given.one:
        given.into.write_bytes(pickle.dumps(measured(given.one, suite, given.seconds)))
        return
    methods = [m.strip() for m in given.methods.split(";") if m.strip()] or METHODS
    curves = suite.curves("cpu")
    print(f"{cpu_name()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.2f}, "
          f"{given.seconds:g} s a run, two runs each")  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        for count in map(int, given.busy.split(",")):
            with busy(count):
                for method in methods:
                    runs = [run_once(method, given.seconds, Path(folder) / "run") for _ in "12"]
                    row = {
                        "between": between(*runs, curves),
                        "within": [floor_of(run, curves)["floor"] for run in runs],
                        "plain": [floor_of(run, curves)["plain"] for run in runs],
                    }
                    print(f"{count} busy  {method:24s} {json.dumps(row)}", flush=True)


if __name__ == "__main__":
    main()
