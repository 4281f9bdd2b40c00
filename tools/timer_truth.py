"""What a GPU's timers add, and how finely they step: products of known size, timed every way.

    python tools/timer_truth.py --device cuda --out truth.json

Each product is captured in graphs of 1, 2, 4, 16 and 64 calls, launched in random order; launched
by the host; and traced. A graph's time is a constant and so much a call: the constant is what runs
of one length hide, the smallest difference between two times is the events' tick. Raw times are
kept, and how long the host took to prepare, trace and capture.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from gacprof import operators
from gacprof.core.errors import MeasurementError, first_line
from gacprof.devices.cuda import CudaDevice
from gacprof.devices.cuda_graph import GraphRun, GraphWork, LaunchedRun, TimedRun
from gacprof.devices.cuda_slot import prepare
from gacprof.devices.device import Slot
from gacprof.devices.kineto import span_us
from gacprof.devices.device import open_device

PRODUCTS = {"3 us": (1, 1024, 1024), "30 us": (2048, 2048, 2560), "100 us": (4096, 4096, 2048),
            "400 us": (8192, 4096, 4096)}  # fmt: skip
"""M, N and K in float16, by about how long an H100 takes."""
CALLS, LAUNCHED = (1, 2, 4, 16, 64), (1, 8)
LONGEST_US = 8_000
REPETITIONS = 60


def timed(device: CudaDevice, shape: tuple[int, int, int]) -> dict[str, Any]:
    """All times of one product: microseconds of a whole run, by the number of its calls."""
    point = operators.point("linear", dict(zip("MNK", shape, strict=True)), "float16")
    begun = time.perf_counter()
    ready = prepare(device, Slot(point))
    prepared, costs = time.perf_counter(), {}
    traced = device.tracer.typical_calls([ready.placement.bind()])
    costs["prepare_ms"], costs["trace_ms"] = prepared - begun, time.perf_counter() - prepared
    runs: dict[str, TimedRun] = {}
    for calls in CALLS:
        if calls == 1 or calls * ready.us <= LONGEST_US:
            work = GraphWork(
                tuple(ready.placement.bind() for _ in range(calls)), ready.placement.bind()
            )
            begun = time.perf_counter()
            run = GraphRun(work, device.graphs)
            run.launch()
            device.synchronise()
            costs[f"capture_{calls}_ms"] = time.perf_counter() - begun
            runs[f"graph {calls}"] = run
            if calls in LAUNCHED:
                runs[f"events {calls}"] = LaunchedRun(work, ready.enqueue_us)
    found: dict[str, list[float]] = {name: [] for name in runs}
    draw = random.Random(0)
    for _ in range(REPETITIONS):
        for name in draw.sample(list(runs), len(runs)):
            runs[name].launch()
            device.synchronise()
            found[name].append(runs[name].total_us())
    names = [event.name for event in traced[0] or ()] if traced else []
    return {
        "shape": shape,
        "runs": found,
        "traced_us": span_us(traced[0]) if traced and traced[0] else None,
        "kernels": names,
        **{name: round(1e3 * seconds, 3) for name, seconds in costs.items()},
    }


def judged(found: dict[str, Any]) -> dict[str, float | None]:
    """Of a product's times: a call, what a graph adds to it, how far repetitions spread."""
    graphs = {int(k.split()[1]): v for k, v in found["runs"].items() if k.startswith("graph")}
    each = {calls: median(times) for calls, times in graphs.items()}
    a_call, constant = (
        np.polyfit(list(each), list(each.values()), 1, w=[1 / calls for calls in each])
        if len(each) > 1
        else (each[1], float("nan"))
    )
    spread = {
        calls: float(np.subtract(*np.percentile(times, [75, 25])) / median(times))
        for calls, times in graphs.items()
    }
    steps = np.diff(np.unique(np.round([t for v in graphs.values() for t in v], 4)))
    return {
        "call_us": float(a_call),
        "constant_us": float(constant),
        "tick_us": float(steps.min()) if len(steps) else None,
        **{f"spread_{calls}": value for calls, value in spread.items()},
    }


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ask.add_argument("--device", default="cuda")
    ask.add_argument("--out", type=Path, required=True)
    given = ask.parse_args()
    device = open_device(given.device)
    if not isinstance(device, CudaDevice):
        raise SystemExit(f"{given.device} is no CUDA GPU")
    report: dict[str, Any] = {"environment": device.environment.stack | {}, "products": {}}
    with device:
        device.burn_in()
        for name, shape in PRODUCTS.items():
            try:
                with device.active():
                    found = timed(device, shape)
            except (MeasurementError, RuntimeError) as error:
                print(f"{name}: {first_line(error)}", flush=True)
                continue
            found |= judged(found)
            report["products"][name] = found
            given.out.write_text(json.dumps(report, indent=1))
            shown = {k: v for k, v in found.items() if k not in ("runs", "kernels")}
            print(name, json.dumps(shown), flush=True)
        report["why_no_trace"] = device.tracer.why_not
    given.out.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
