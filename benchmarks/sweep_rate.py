"""The time a point takes to reach a spread, beside triton.testing and torch.utils.benchmark.

    python benchmarks/sweep_rate.py [--device cpu|cuda] [--repeats 5] [--threads 1]

Every tool measures the same linear points ``--repeats`` times over, at several settings of what
trades its time for its spread: how often we visit a point and the cap of a visit, do_bench's
``rep``, blocked_autorange's ``min_run_time``. A tool gives what it gives its user: of several
visits we take the least disturbed one, as a map does, the others the median of one go. All
tools and settings take turns within a repeat, so that a busy stretch of the machine falls on
all alike. *Spread* is the median over points of (largest − smallest) / smallest of a point's
repeated results: what a repeat may differ by. The time at a given spread is read off between the
two settings around it, on log scales; a slower setting with a larger spread than a faster one
counts for nothing. The spreads asked for are not chosen: the least that all tools reach, and
twice and four times that. The device is burnt in before all tools alike; a sweep's own burn-in,
half a second whatever its length, is not counted.

Our own overhead is a sweep of the recorded device, which takes no time to answer: all of it is
the engine's.
"""

from __future__ import annotations

import argparse
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Any, cast

import torch
from gacprof.cliffmap.visits import least_disturbed
from gacprof.sweeping.worker import IsolatedDevice

from gacprof import operators
from gacprof.measure.device import Device, open_device
from gacprof.measure.environment import cpu_name
from gacprof.measure.recorded import RecordedDevice
from gacprof.points import Point
from gacprof.sweeping import read_samples, run_sweep
from gacprof.sweeping.suite import Suite, parse_suite

SIZES = range(96, 128)
Measure = Callable[[list[Point]], dict[Point, float]]


class BurntIn:
    """A device that was burnt in already: a sweep does so once, whatever its number of points,
    and the other tools not at all."""

    def __init__(self, device: Device) -> None:
        self._device = device
        device.burn_in()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def burn_in(self) -> None:
        pass


@dataclass(frozen=True)
class Setting:
    """One tool at one setting of its knob. ``default`` is what a user gets."""

    tool: str
    knob: str
    measure: Measure
    default: bool = False


@dataclass(frozen=True)
class Reached:
    seconds: float
    """of wall time a point"""
    spread: float


def suite(
    dtype: str,
    sizes: range = SIZES,
    count: int | None = None,
    passes: int = 1,
    cap_ms: float | None = None,
) -> Suite:
    """Microsecond products over K. With a cap each visit goes on until it is spent."""
    sweep = {
        "operator": "linear",
        "axis": "K",
        "values": list(sizes),
        "dims": {"M": 16, "N": 1024},
        "dtype": dtype,
    }
    timing: dict[str, Any] = {"passes": passes, "duplicates": 0, "count": count}
    timing["edge_visits"] = 0
    if cap_ms is not None:
        timing |= {"cap_ms": cap_ms, "half_width": 1e-9}
    return parse_suite({"name": "rate", "timing": timing, "sweep": [sweep]}, "benchmark")


def ours(device: Device, dtype: str, passes: int, cap_ms: float | None) -> Measure:
    def measure(points: list[Point]) -> dict[Point, float]:
        sizes = range(points[0].dim["K"], points[-1].dim["K"] + 1)
        with tempfile.TemporaryDirectory() as folder:
            made = suite(dtype, sizes, passes=passes, cap_ms=cap_ms)
            run_sweep(made, device, Path(folder) / "run")
            visits: dict[Point, list[tuple[float, ...]]] = {}
            for sample in read_samples(Path(folder) / "run"):
                if sample.timings_us:
                    visits.setdefault(sample.point, []).append(sample.timings_us)
            return {point: median(least_disturbed(all_)) for point, all_ in visits.items()}

    return measure


def one_by_one(time_us: Callable[[Callable[[], object]], float], kind: str) -> Measure:
    """A tool that measures a call, given each point's in turn."""

    def measure(points: list[Point]) -> dict[Point, float]:
        where = torch.device(kind)
        return {p: time_us(operators.get(p.operator).prepare(p, where)) for p in points}

    return measure


def settings(device: Device, dtype: str) -> Iterator[Setting]:
    from torch.utils.benchmark import Timer

    kind = device.environment.kind
    yield Setting("gacprof", "as suites have it", ours(device, dtype, 2, None), default=True)
    for passes in (1, 2, 4, 8):
        for cap_ms in (0.5, 2.0, 8.0):
            knob = f"{passes} × {cap_ms:g} ms"
            yield Setting("gacprof", knob, ours(device, dtype, passes, cap_ms))
    if kind == "cuda":
        from triton.testing import do_bench

        for rep in (1, 5, 20, 100):

            def bench(call: Callable[[], object], rep: int = rep) -> float:
                return 1e3 * float(do_bench(call, rep=rep, return_mode="median"))

            yield Setting(
                "triton do_bench", f"rep {rep} ms", one_by_one(bench, kind), default=rep == 100
            )
    for least_s in (0.0005, 0.002, 0.01, 0.05, 0.2):

        def blocked(call: Callable[[], object], least_s: float = least_s) -> float:
            threads = torch.get_num_threads()
            timer = Timer("call()", globals={"call": call}, num_threads=threads)
            return 1e6 * timer.blocked_autorange(min_run_time=least_s).median

        yield Setting(
            "torch blocked_autorange",
            f"min_run_time {least_s:g} s",
            one_by_one(blocked, kind),
            default=least_s == 0.2,
        )


def compare(device: Device, dtype: str, repeats: int) -> dict[Setting, Reached]:
    points = sorted(suite(dtype).points(device.environment.kind), key=lambda p: p.dim["K"])
    every = list(settings(cast(Device, BurntIn(device)), dtype))
    results: dict[Setting, list[dict[Point, float]]] = {setting: [] for setting in every}
    seconds = dict.fromkeys(every, 0.0)
    for setting in every:
        setting.measure(points[:4])  # first calls load libraries
    for _ in range(repeats):
        for setting in every:
            started = time.perf_counter()
            results[setting].append(setting.measure(points))
            seconds[setting] += time.perf_counter() - started
    reached = {}
    for setting in every:
        spreads = []
        for point in points:
            found = [result[point] for result in results[setting] if point in result]
            spreads.append((max(found) - min(found)) / min(found))
        per_point = seconds[setting] / repeats / len(points)
        reached[setting] = Reached(per_point, median(spreads))
    return reached


def curves(reached: dict[Setting, Reached]) -> dict[str, list[Reached]]:
    """By tool, ascending in time: the settings that reach less than every faster one does."""
    found: dict[str, list[Reached]] = {}
    by_time = sorted(reached.items(), key=lambda entry: entry[1].seconds)
    for setting, one in by_time:
        curve = found.setdefault(setting.tool, [])
        if not curve or one.spread < curve[-1].spread:
            curve.append(one)
    return found


def seconds_at(curve: list[Reached], spread: float) -> float | None:
    """Seconds a point at which a tool reaches a spread; None if at no setting. No less than
    its fastest setting takes."""
    if spread >= curve[0].spread:
        return curve[0].seconds
    for faster, slower in pairwise(curve):
        if slower.spread <= spread:
            part = log(faster.spread / spread) / log(faster.spread / max(slower.spread, 1e-9))
            return exp((1 - part) * log(faster.seconds) + part * log(slower.seconds))
    return None


def told(reached: dict[Setting, Reached]) -> Iterator[str]:
    yield "| tool | setting | ms a point | points/s | spread |"
    yield "|---|---|---:|---:|---:|"
    for setting, one in reached.items():
        default = " (default)" if setting.default else ""
        yield (
            f"| {setting.tool} | {setting.knob}{default} | {1e3 * one.seconds:.2f} "
            f"| {1 / one.seconds:.1f} | {100 * one.spread:.2f} % |"
        )
    by_tool = curves(reached)
    least = max(curve[-1].spread for curve in by_tool.values())
    spreads = [least * times for times in (1, 2, 4)]
    yield "\nms a point at equal spread (the least that all reach, twice and four times that):\n"
    yield "| tool | " + " | ".join(f"{100 * spread:.2f} %" for spread in spreads) + " |"
    yield "|---|" + "---:|" * len(spreads)
    for tool, curve in by_tool.items():
        times = [seconds_at(curve, spread) for spread in spreads]
        cells = ["never" if s is None else f"{1e3 * s:.2f}" for s in times]
        yield f"| {tool} | " + " | ".join(cells) + " |"


def recorded() -> Device:
    return RecordedDevice(lambda point, count: [1.0] * count)


def overhead_us(device: Device) -> float:
    """Microseconds of the engine's own a visit, over 2000 visits of ten timings."""
    big = suite("float32", range(1, 2001), count=10)
    with tempfile.TemporaryDirectory() as folder:
        run_sweep(suite("float32"), device, Path(folder) / "first")  # imports are not counted
        started = time.perf_counter()
        run_sweep(big, device, Path(folder) / "run")
        return (time.perf_counter() - started) / 2000 * 1e6


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--device", default=None)
    arguments.add_argument("--repeats", type=int, default=5)
    arguments.add_argument("--threads", type=int, default=1, help="of a CPU; see docs/sweeping.md")
    arguments.add_argument("--note", default="", help="said of the machine, such as 'shared'")
    given = arguments.parse_args()
    torch.set_num_threads(given.threads)
    device = open_device(given.device)
    kind = device.environment.kind
    dtype = "float16" if kind == "cuda" else "float32"
    note = f", {given.note}" if given.note else ""
    print(f"{device.environment.name} ({cpu_name()}, {platform.system()}{note}),")
    print(f"torch {torch.__version__}, {torch.get_num_threads()} CPU threads")
    print(
        f"`python benchmarks/sweep_rate.py --device {kind} --repeats {given.repeats} "
        f"--threads {given.threads}`\n"
    )
    print(f"linear M=16 N=1024 K={SIZES[0]}..{SIZES[-1]} {dtype}, {len(SIZES)} points\n")
    for row in told(compare(device, dtype, given.repeats)):
        print(row)
    print(
        f"\nThe engine's own overhead: {overhead_us(recorded()):.0f} µs a visit (recorded device),"
    )
    with IsolatedDevice(recorded) as isolated:
        print(f"{overhead_us(isolated):.0f} µs a visit with the device in a worker process")


if __name__ == "__main__":
    main()
