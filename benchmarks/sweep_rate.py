"""Points per second and the spread reached, beside triton.testing and torch.utils.benchmark.

    python benchmarks/sweep_rate.py [--device cpu|cuda] [--repeats 5]

Every tool measures the same linear points ``--repeats`` times over. *Spread* is the median
over points of (largest − smallest) / smallest of a point's repeated results: what a repeat
may differ by. A tool is better if it is faster at no larger spread. Our own overhead is a
sweep of the recorded device, which takes no time to answer: all of it is the engine's.
"""

from __future__ import annotations

import argparse
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import torch

from gacprof import operators
from gacprof.measure.device import Device, open_device
from gacprof.measure.environment import cpu_name
from gacprof.measure.recorded import RecordedDevice
from gacprof.points import Point
from gacprof.sweeping import read_samples, run_sweep
from gacprof.sweeping.suite import Suite, parse_suite
from gacprof.sweeping.worker import IsolatedDevice

SIZES = range(96, 128)
Measure = Callable[[list[Point]], dict[Point, float]]


def suite(dtype: str, sizes: range = SIZES, count: int | None = None) -> Suite:
    """Microsecond products over K, visited once: rates count points, not passes."""
    sweep = {
        "operator": "linear",
        "axis": "K",
        "values": list(sizes),
        "dims": {"M": 16, "N": 256},
        "dtype": dtype,
    }
    timing = {"passes": 1, "duplicates": 0, "count": count}
    return parse_suite({"name": "rate", "timing": timing, "sweep": [sweep]}, "benchmark")


def ours(device: Device, dtype: str) -> Measure:
    def measure(points: list[Point]) -> dict[Point, float]:
        with tempfile.TemporaryDirectory() as folder:
            run_sweep(suite(dtype), device, Path(folder) / "run")
            return {s.point: median(s.timings_us) for s in read_samples(Path(folder) / "run")}

    return measure


def one_by_one(time_us: Callable[[Callable[[], object]], float], kind: str) -> Measure:
    """A tool that measures a call, given each point's in turn."""

    def measure(points: list[Point]) -> dict[Point, float]:
        where = torch.device(kind)
        return {p: time_us(operators.get(p.operator).prepare(p, where)) for p in points}

    return measure


def tools(device: Device, dtype: str) -> Iterator[tuple[str, Measure]]:
    kind = device.environment.kind
    yield f"gacprof ({device.timer})", ours(device, dtype)
    if kind == "cuda":
        from triton.testing import do_bench

        yield (
            "triton do_bench (defaults)",
            one_by_one(lambda call: 1e3 * do_bench(call, return_mode="median"), kind),
        )

    from torch.utils.benchmark import Timer

    def blocked(call: Callable[[], object], least_s: float) -> float:
        timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
        return 1e6 * timer.blocked_autorange(min_run_time=least_s).median

    yield (
        "torch Timer.blocked_autorange (0.2 s, its default)",
        one_by_one(lambda call: blocked(call, 0.2), kind),
    )
    yield (
        "torch Timer.blocked_autorange (0.01 s)",
        one_by_one(lambda call: blocked(call, 0.01), kind),
    )


def compare(device: Device, dtype: str, repeats: int) -> list[str]:
    points = list(suite(dtype).points(device.environment.kind))
    rows = []
    for name, measure in tools(device, dtype):
        measure(points[:4])  # first calls load libraries
        started = time.perf_counter()
        results = [measure(points) for _ in range(repeats)]
        seconds = time.perf_counter() - started
        spreads = []
        for point in points:
            found = [result[point] for result in results if point in result]
            spreads.append((max(found) - min(found)) / min(found))
        rate = len(points) * repeats / seconds
        rows.append(f"| {name} | {rate:.1f} | {100 * median(spreads):.1f} % |")
    return rows


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
    arguments.add_argument("--note", default="", help="said of the machine, such as 'shared'")
    given = arguments.parse_args()
    device = open_device(given.device)
    kind = device.environment.kind
    dtype = "float16" if kind == "cuda" else "float32"
    note = f", {given.note}" if given.note else ""
    print(f"{device.environment.name} ({cpu_name()}, {platform.system()}{note}),")
    print(f"torch {torch.__version__}, {torch.get_num_threads()} CPU threads")
    print(f"`python benchmarks/sweep_rate.py --device {kind} --repeats {given.repeats}`\n")
    print(f"linear M=16 N=256 K={SIZES[0]}..{SIZES[-1]} {dtype}, {len(SIZES)} points\n")
    print("| tool | points/s | spread |\n|---|---:|---:|")
    for row in compare(device, dtype, given.repeats):
        print(row)
    print(
        f"\nThe engine's own overhead: {overhead_us(recorded()):.0f} µs a visit (recorded device),"
    )
    with IsolatedDevice(recorded) as isolated:
        print(f"{overhead_us(isolated):.0f} µs a visit with the device in a worker process")


if __name__ == "__main__":
    main()
