"""How long a sweep will take: a few visits taken for it, else a guess from the points' work."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

from gacprof import operators
from gacprof.measure.device import Device
from gacprof.measure.roof import ROOFS, Roof
from gacprof.points import Point
from gacprof.sweeping.order import Visit, visits
from gacprof.sweeping.refine import LARGEST_SHARE, MEASURE_ALL_BELOW
from gacprof.sweeping.suite import Suite, Sweep, Timing
from gacprof.sweeping.visiting import measure_visit

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
TYPICAL = 2.0
"""How many times the least number of timings a visit takes until its median is known."""
PROBE_S = 1.5
"""Time for visits that an estimate is made from."""
THOROUGH = 3.0
"""A thorough visit in others: four times the timings, and the fixed part once."""
EDGES = {"low": 0.1, "high": 1.0}
"""Thorough visits a point: a quiet device, and twice what one with 1 % of noise takes."""
SPREAD = {"low": 0.8, "high": 1.5}
"""What the visits that were taken, or a guess scaled by them, may be off by: other work on the
machine lengthens visits, and a cap is reached by some that are not among those taken."""
GUESS = {"low": 0.2, "high": 3.0}
"""What a guess that rests on no visit may be off by."""


@dataclass(frozen=True)
class Estimate:
    """Seconds, from a quiet device to a busy one. ``visits`` were taken for it: with none it is
    a guess from the points' work."""

    low_s: float
    high_s: float
    visits: int = 0


@dataclass(frozen=True)
class _Curve:
    sweep: Sweep
    points: list[Point]


def estimate(
    suite: Suite, device_kind: str, device_name: str = "", device: Device | None = None
) -> Estimate:
    """What the suite may take; no more than its budget. Raises :class:`SuiteError`.

    With a ``device`` a few visits are taken on it, for :data:`PROBE_S` or one visit.
    """
    timing, points = suite.timing, suite.points(device_kind)
    order = visits(points, timing.passes, timing.duplicates, timing.least_duplicates, timing.seed)
    passes = len(order) / len(points)
    curves = list(_curves(suite, device_kind))
    roof = ROOFS.get(device_name) or ASSUMED.get(device_kind) or ASSUMED["cpu"]

    def guessed_us(point: Point) -> float:
        return _visit_us(point, timing, device_kind, roof)

    tried = {} if device is None else _probed(curves, timing, device, guessed_us)
    slower = {number: median(found) for number, found in tried.items()}
    usual = median(slower.values()) if slower else 1.0
    low = high = 0.0
    off = SPREAD if slower else GUESS
    for number, curve in enumerate(curves):
        factor = slower.get(number, usual)
        once = sum(guessed_us(point) * factor + ENGINE_US for point in curve.points) / 1e6
        refined = curve.sweep.strategy == "adaptive" and len(curve.points) >= MEASURE_ALL_BELOW
        least, most = (0.4 / LARGEST_SHARE, 1 / LARGEST_SHARE) if refined else (1.0, 1.0)
        edges = THOROUGH if timing.edge_visits else 0.0
        low += once * least * (off["low"] * passes + EDGES["low"] * edges)
        high += once * most * (off["high"] * passes + EDGES["high"] * edges)
    budget = timing.budget_s or float("inf")
    return Estimate(min(low, budget), min(high, budget), sum(map(len, tried.values())))


def _curves(suite: Suite, device_kind: str) -> Iterator[_Curve]:
    """Every point of the suite once, by the curve that it is first on."""
    met: set[Point] = set()
    for sweep in suite.sweep:
        if sweep.device in (None, device_kind):
            for curve in sweep.curves(device_kind):
                yield _Curve(sweep, [p for p in curve.values() if p not in met])
                met.update(curve.values())


def _probed(
    curves: list[_Curve],
    timing: Timing,
    device: Device,
    guessed_us: Callable[[Point], float],
) -> dict[int, list[float]]:
    """How many times the guess each visit took, by the number of its curve: of the middle of each,
    the curves of most points first, then towards the ends, while there is time."""
    until = time.monotonic() + PROBE_S
    taken: dict[int, list[float]] = {}
    largest = sorted(range(len(curves)), key=lambda number: -len(curves[number].points))
    for place in (0.5, 0.1, 0.9):
        for number in largest:
            points = curves[number].points
            if not points:
                continue
            point = points[int(place * len(points))]
            seconds = _visit_s(point, timing, device)
            if seconds is not None:
                taken.setdefault(number, []).append(seconds * 1e6 / guessed_us(point))
            if time.monotonic() >= until:
                break
    return taken


def _visit_s(point: Point, timing: Timing, device: Device) -> float | None:
    """Seconds of a visit, the second of two: the first loads what the operator needs."""
    seconds = None
    for _ in range(2):
        started = time.monotonic()
        if measure_visit(device, Visit(point, 0, False), (), timing).status == "failed":
            return None
        seconds = time.monotonic() - started
    return seconds


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
