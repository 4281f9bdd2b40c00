"""How long a sweep will take, roughly, before anything is measured."""

from __future__ import annotations

from gacprof import operators
from gacprof.measure.roof import ROOFS, Roof
from gacprof.points import Point
from gacprof.sweeping.order import visits
from gacprof.sweeping.refine import LARGEST_SHARE, MEASURE_ALL_BELOW
from gacprof.sweeping.suite import Suite, Timing

FIXED_US = {"cuda": 8_000.0, "cpu": 1_500.0}
"""A visit beside its timings: allocating, first calls, one trace; a guess, not measured."""
EACH_US = {"cuda": 75.0, "cpu": 2.0}
"""A timing beside the call: flush, sleep and gaps on a GPU (facts: timing.md)."""
REACHED = 0.4
"""The share of the roof that a call is taken to reach."""
ASSUMED = {
    "cuda": ROOFS["NVIDIA H100 80GB HBM3"],
    "cpu": Roof({"float32": 0.05, "bfloat16": 0.05, "float16": 0.01, "int8": 0.05}, 10.0),
}
"""Where the device is not known: an H100, and a CPU of two slow cores."""
WARM_UP_CALLS = 4
TYPICAL = 2.0
"""How many times the least number of timings a visit takes until its median is known."""


def estimate_s(suite: Suite, device_kind: str, device_name: str = "") -> float:
    """Seconds that the suite may take; no more than its budget. Raises :class:`SuiteError`."""
    points = list(suite.points(device_kind))
    timing = suite.timing
    roof = ROOFS.get(device_name) or ASSUMED.get(device_kind) or ASSUMED["cpu"]
    order = visits(points, timing.passes, timing.duplicates, timing.least_duplicates, timing.seed)
    total = sum(_visit_us(visit.point, timing, device_kind, roof) for visit in order) / 1e6
    seconds = total * _share_measured(suite, device_kind)
    return min(seconds, timing.budget_s or seconds)


def _visit_us(point: Point, timing: Timing, kind: str, roof: Roof) -> float:
    operator = operators.get(point.operator)
    dtype = point.dtype if point.dtype in roof.tflops else next(iter(roof.tflops))
    least = roof.least_us(operator.flops(point), operator.bytes_moved(point), dtype)
    call = (least or 0.0) / REACHED
    if timing.count is not None:
        count: float = timing.count
    else:
        enough = max(timing.least, timing.cap_ms * 1e3 / max(call, 1e-3))
        count = min(TYPICAL * timing.least, enough)
    each = EACH_US.get(kind, 0.0) + call
    return FIXED_US.get(kind, 0.0) + (WARM_UP_CALLS + timing.warm_up) * call + count * each


def _share_measured(suite: Suite, device_kind: str) -> float:
    """Of all points, those that refinement is expected to measure."""
    whole = measured = 0.0
    for sweep in suite.sweep:
        if sweep.device not in (None, device_kind):
            continue
        refined = sweep.strategy == "adaptive" and len(sweep.axis_values) >= MEASURE_ALL_BELOW
        count = sum(1 for _ in sweep.points(device_kind))
        whole += count
        measured += count / LARGEST_SHARE if refined else count
    return measured / whole
