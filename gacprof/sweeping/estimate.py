"""How long a sweep will take: a few points called for it, else a guess from the points' work."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from gacprof import operators
from gacprof.measure.device import Device
from gacprof.measure.roof import ROOFS, Roof
from gacprof.points import Point
from gacprof.sweeping.order import visits
from gacprof.sweeping.refine import LARGEST_SHARE, MEASURE_ALL_BELOW
from gacprof.sweeping.suite import Suite, Sweep, Timing

FIXED_US = {"cuda": 8_000.0, "cpu": 1_500.0}
"""A visit beside its timings: allocating, first calls, one trace; a guess, not measured."""
EACH_US = {"cuda": 75.0, "cpu": 2.0}
"""A timing beside the call: flush, sleep and gaps on a GPU (facts: timing.md)."""
ENGINE_US = 300.0
"""A visit's share of the engine: its line on disk, its place in the order (sweep_rate.py)."""
REACHED = 0.4
"""The share of the roof that a call is taken to reach."""
ASSUMED = {
    "cuda": ROOFS["NVIDIA H100 80GB HBM3"],
    "cpu": Roof({"float32": 0.05, "bfloat16": 0.05, "float16": 0.01, "int8": 0.05}, 10.0),
}
"""Where the device is not known: an H100, and a CPU of two slow cores."""
WARM_UP_CALLS = 4
PROBE_S = 1.5
"""Time for the calls that an estimate is made from."""
THOROUGH = 4.0
"""A thorough visit's timings in those of others (suite.Timing.rule)."""
EDGE_VISITS = (0.1, 3.0)
"""Thorough visits a point: on a quiet device, and what `quick` took on a CPU of two busy cores."""
REFINED = (0.4 / LARGEST_SHARE, 1 / LARGEST_SHARE)
"""The share of a refined axis's points: a few edges, and as many as it may take."""
GUESS = (0.3, 3.0)
"""What a guess that rests on no call may be off by."""


@dataclass(frozen=True)
class Estimate:
    """Seconds: where every visit takes the least number of timings, and where each goes on to
    its cap. ``calls`` points were called for it; with none it is a guess from their work."""

    low_s: float
    high_s: float
    calls: int = 0


@dataclass(frozen=True)
class _Curve:
    sweep: Sweep
    points: list[Point]


def estimate(
    suite: Suite, device_kind: str, device_name: str = "", device: Device | None = None
) -> Estimate:
    """What the suite may take; no more than its budget. Raises :class:`SuiteError`.

    With a ``device`` points from the middle and the ends of curves are called on it, for
    :data:`PROBE_S` or one point.
    """
    timing, points = suite.timing, suite.points(device_kind)
    order = visits(points, timing.passes, timing.duplicates, timing.least_duplicates, timing.seed)
    passes = len(order) / len(points)
    curves = list(_curves(suite, device_kind))
    roof = ROOFS.get(device_name) or ASSUMED.get(device_kind) or ASSUMED["cpu"]
    tried = {} if device is None else _tried(curves, device, roof)
    slower = {number: median(found) for number, found in tried.items()}
    usual = median(slower.values()) if slower else 1.0
    sums = [0.0, 0.0]
    for number, curve in enumerate(curves):
        for end in (0, 1):
            factor = slower.get(number, usual) * (1.0 if tried else GUESS[end])
            calls = [factor * _guess_us(point, roof) for point in curve.points]
            once, longer = (
                sum(_visit_us(call, timing, device_kind, end == 1, times) for call in calls)
                for times in (1.0, THOROUGH)
            )
            edges = EDGE_VISITS[end] if timing.edge_visits else 0.0
            share = REFINED[end] if _refined(curve) else 1.0
            sums[end] += share * (passes * once + edges * longer) / 1e6
    budget = timing.budget_s or float("inf")
    return Estimate(min(sums[0], budget), min(sums[1], budget), sum(map(len, tried.values())))


def _curves(suite: Suite, device_kind: str) -> Iterator[_Curve]:
    """Every point of the suite once, by the curve that it is first on."""
    met: set[Point] = set()
    for sweep in suite.sweep:
        if sweep.device in (None, device_kind):
            for curve in sweep.curves(device_kind):
                fresh = [p for p in curve.values() if p not in met]
                met.update(fresh)
                if fresh:
                    yield _Curve(sweep, fresh)


def _refined(curve: _Curve) -> bool:
    return curve.sweep.strategy == "adaptive" and len(curve.points) >= MEASURE_ALL_BELOW


def _tried(curves: list[_Curve], device: Device, roof: Roof) -> dict[int, list[float]]:
    """How many times the guess a call took, by the number of its curve: the middle of each, then
    towards the ends, while there is time."""
    until = time.monotonic() + PROBE_S
    taken: dict[int, list[float]] = {}
    for place in (0.5, 0.1, 0.9):
        for number, curve in enumerate(curves):
            point = curve.points[int(place * len(curve.points))]
            call_us = _call_us(point, device)
            if call_us is not None:
                taken.setdefault(number, []).append(call_us / _guess_us(point, roof))
            if time.monotonic() >= until:
                return taken
    return taken


def _call_us(point: Point, device: Device) -> float | None:
    """A call's time, after warming up; None where the point fails, for whatever reason."""
    try:
        work = device.prepare(point)
        work.warm_up()
        return median(work.time(3))
    except Exception:  # an operator may raise anything; the sweep will tell it
        return None


def _guess_us(point: Point, roof: Roof) -> float:
    operator = operators.get(point.operator)
    dtype = point.dtype if point.dtype in roof.tflops else next(iter(roof.tflops))
    least = roof.least_us(operator.flops(point), operator.bytes_moved(point), dtype)
    return max(1.0, (least or 0.0) / REACHED)


def _visit_us(call: float, timing: Timing, kind: str, to_the_cap: bool, times: float) -> float:
    """A visit: the fixed part, warming up, and its timings, ``times`` as many as usual."""
    each = EACH_US.get(kind, 0.0) + call
    if timing.count is not None:
        timings = timing.count * each
    else:
        timings = times * timing.least * each
        if to_the_cap:
            timings = max(timings, times * timing.cap_ms * 1e3 * each / call)
    warm_up = (WARM_UP_CALLS + timing.warm_up) * call
    return ENGINE_US + FIXED_US.get(kind, 0.0) + warm_up + timings
