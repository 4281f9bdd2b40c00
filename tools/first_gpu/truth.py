"""Ground truth of a GPU and of our way to time it, in a minute: what is known from elsewhere first.

    python tools/first_gpu/truth.py [--out truth.json]
    GACPROF_UNTRACED=1 python tools/first_gpu/truth.py     # does a tracer change what graphs take?

Products of a few and of hundreds of microseconds, by the tracer, by graphs of 1 to 64 calls and by
events around calls of the host: they differ by constants. Copies and a large product, whose rates
are known (H100: 3.0 TB/s, about 790 TFLOP/s; H200: 4.3 TB/s). The ticks of events, what an empty
graph costs, the SM clock after idling and at work, and what reading the throttling counters costs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from gacprof.devices.cuda import CudaDevice
from gacprof.devices.cuda_graph import TimedGraph, sleep
from gacprof.devices.nvml import Throttling
from gacprof.devices.tracing import traced_kernels

RUNS = (1, 2, 16, 64)
SHAPES = ((1, 1024, 1024), (2048, 2048, 2048), (4096, 3072, 4096), (4096, 8192, 4096))
"""(M, N, K) in bfloat16: 7, 24, 129 and 341 µs on an H200, by the tracer."""
LAUNCHES = 31
TRACED = 21
LISTS = ("after_idling_mhz", "after_work_mhz")
"""Too long to be printed."""
COPY_BYTES = 4 << 30
LARGE, LARGE_CALLS = 8192, 300
"""Half a second of a product: bursts of 20 ms on an H200 told data and zeros not apart."""


def graph_times_us(device: CudaDevice, call: Callable[[], Any], run: int) -> list[float]:
    """Microseconds between the events of a graph of so many calls, whole."""
    graph = TimedGraph([call] * run, device.graphs, device.graph_pool, before=call)
    times_us = []
    for _ in range(LAUNCHES):
        graph.launch()
        torch.cuda.synchronize()
        times_us.append(graph.elapsed_us())
    return times_us


def event_times_us(call: Callable[[], Any], run: int) -> list[float]:
    """The same of calls that the host launches while the device sleeps."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times_us = []
    for _ in range(LAUNCHES):
        sleep(20.0 + 20.0 * run)
        start.record()
        for _ in range(run):
            call()
        end.record()
        torch.cuda.synchronize()
        times_us.append(start.elapsed_time(end) * 1e3)
    return times_us


def rate(call: Callable[[], Any], work: float, calls: int = 10) -> float:
    """Work a second over calls one after another, after three warm-ups."""
    for _ in range(3):
        call()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(calls):
        call()
    end.record()
    torch.cuda.synchronize()
    return work * calls / max(1e-9, start.elapsed_time(end) / 1e3)


def rates(device: CudaDevice) -> dict[str, float]:
    """Bandwidth of a copy, and the rate of a large product on random data and on zeros."""
    elements = min(COPY_BYTES, device.memory_bytes // 8) // 2
    source = torch.empty(elements, dtype=torch.bfloat16, device="cuda")
    target = torch.empty_like(source)
    found = {"copy_tb_s": rate(partial(target.copy_, source), 4e-12 * elements)}
    x = torch.randn(LARGE, LARGE, device="cuda").bfloat16()
    found["bf16_tflops"] = rate(lambda: x @ x, 2e-12 * LARGE**3, LARGE_CALLS)
    x.zero_()
    found["bf16_tflops_zeros"] = rate(lambda: x @ x, 2e-12 * LARGE**3, LARGE_CALLS)
    return found


def product(m: int, n: int, k: int) -> Callable[[], Any]:
    x = torch.randn(m, k, device="cuda").bfloat16()
    weight = torch.randn(n, k, device="cuda").bfloat16()
    return partial(torch.nn.functional.linear, x, weight)


def products(device: CudaDevice) -> list[dict[str, Any]]:
    """Each product by the tracer, before any graph, by graph and by events; quartiles of
    microseconds, whole."""
    found = []
    calls = [product(*shape) for shape in SHAPES]
    traced = traced_kernels([call for call in calls for _ in range(TRACED)])
    for number, (shape, call) in enumerate(zip(SHAPES, calls, strict=True)):
        seen = [runs for runs in traced[number * TRACED : (number + 1) * TRACED] if runs]
        row: dict[str, Any] = dict(zip("MNK", shape, strict=True))
        row["kernels"] = [run.name for run in seen[-1]] if seen else []
        row["tracer_us"] = quartiles([sum(run.us for run in runs) for runs in seen])
        for run in RUNS:
            row[f"graph{run}_us"] = quartiles(graph_times_us(device, call, run))
            row[f"events{run}_us"] = quartiles(event_times_us(call, run))
        print(json.dumps(row), flush=True)
        found.append(row)
    return found


def quartiles(values: list[float]) -> list[float]:
    """Lower quartile, median, upper quartile; nothing of no values."""
    ordered = sorted(values)
    return [round(ordered[len(ordered) * part // 4], 3) for part in (1, 2, 3) if ordered]


def ticks(device: CudaDevice) -> dict[str, Any]:
    """Elapsed times of graphs that hold nothing, and of sleeps that grow by 20 ns: the smallest
    step between different ones is an event's tick."""
    empty_us = []
    nothing = TimedGraph([], device.graphs, device.graph_pool)
    for _ in range(200):
        nothing.launch()
        torch.cuda.synchronize()
        empty_us.append(nothing.elapsed_us())
    slept_us = []
    for cycles in range(20_000, 24_000, 40):
        spin = partial(torch.cuda._sleep, cycles)
        graph = TimedGraph([spin], device.graphs, device.graph_pool)
        graph.launch()
        torch.cuda.synchronize()
        slept_us.append(graph.elapsed_us())
    begin = time.perf_counter()
    for _ in range(1000):
        nothing.launch()
    torch.cuda.synchronize()
    launch_us = (time.perf_counter() - begin) * 1e3
    different = sorted({round(us, 4) for us in [*empty_us, *slept_us]})
    steps = [later - earlier for earlier, later in itertools.pairwise(different)]
    return {
        "empty_graph_us": quartiles(empty_us),
        "tick_us": round(min(steps), 4) if steps else None,
        "different_times": len(different),
        "of": len(empty_us) + len(slept_us),
        "launch_of_an_empty_graph_us": round(launch_us, 2),
    }


def clocks_mhz(device: CudaDevice, milliseconds: int) -> list[float]:
    """The SM clock in a row of spins of known cycles, 300 µs each."""
    measured = []
    for _ in range(milliseconds * 3):
        for graph in device.clock_meter:
            graph.launch()
        torch.cuda.synchronize()
        measured.append(0.0 if device.virtual else device.clock_mhz())
    return measured


def clock(device: CudaDevice) -> dict[str, Any]:
    """The SM clock after two idle seconds, and after half a second of heavy work."""
    time.sleep(2)
    after_idling = clocks_mhz(device, 20)
    x = torch.randn(4096, 4096, device="cuda").bfloat16()
    until = time.monotonic() + 0.5
    while time.monotonic() < until:
        for _ in range(20):
            x @ x
        torch.cuda.synchronize()
    after_work = clocks_mhz(device, 10)
    throttling, begin = Throttling(device.index), time.perf_counter()
    for _ in range(20):
        counters = throttling.slowed_ns()
    reading_us = (time.perf_counter() - begin) * 1e6 / 20
    return {
        "after_idling_mhz": after_idling,
        "after_work_mhz": after_work,
        "median_after_work_mhz": median(after_work),
        "counters_ns": counters,
        "reading_of_counters_us": round(reading_us, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    device = CudaDevice()
    record: dict[str, Any] = {"environment": vars(device.environment)}
    parts = {"products": products, "rates": rates, "ticks": ticks, "clock": clock}
    with device.active():
        for name, part in parts.items():
            record[name] = part(device)
            record["constant_us"] = device.constant_us  # measured right behind the products
            if name != "products":
                shown = {what: value for what, value in record[name].items() if what not in LISTS}
                print(name, json.dumps(shown), flush=True)
            if options.out:
                options.out.write_text(json.dumps(record), encoding="utf-8")


if __name__ == "__main__":
    main()
