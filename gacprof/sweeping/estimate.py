"""How long a sweep will take: a few blocks called for it, else a guess from the points' work."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite, sqrt
from statistics import median

import numpy as np

from gacprof import operators
from gacprof.cliffmap.judge import LOOKS
from gacprof.core.errors import MeasurementError
from gacprof.core.fit import block_row, fit_blocks, log_matrix
from gacprof.core.points import Point
from gacprof.devices.datasheet import ROOFS, Roof
from gacprof.devices.device import Device, Slot
from gacprof.sweeping.refine import LARGEST_SHARE, MEASURE_ALL_BELOW
from gacprof.sweeping.suite import CurvePlan, Schedule, Suite

START_S = {"cuda": 8.0, "cpu": 4.0}
"""A fresh process: importing torch and opening the device."""
CALL_US, BLOCK_US = 60.0, 1_500.0
"""A call beside what is timed, and a block: the engine's share, its line on disk."""
PROBE_S, PROBED_SLOTS, PROBED_BLOCKS = 3.0, 6, 6
INTERVAL = 4.5
"""The half-width of a penalty's interval in standard errors of a dim (cliffmap/judge.py)."""
GUESSED_ERROR = 0.004
"""The standard error of a dim after :data:`PROBED_BLOCKS` blocks, where nothing was called."""
REACHED = 0.4
"""The share of the roof that a call is taken to reach."""
ASSUMED = {
    "cuda": ROOFS["NVIDIA H100 80GB HBM3"],
    "cpu": Roof({"float32": 0.05, "bfloat16": 0.05, "float16": 0.01, "int8": 0.05}, 10.0),
}
"""Where the device is not known: an H100, and a CPU of two slow cores."""


@dataclass(frozen=True)
class Width:
    """Half the width of the penalties' intervals, as it is after ``after`` blocks."""

    half: float
    after: int

    @classmethod
    def of(cls, error: float, after: int) -> Width:
        """Of a dim's standard error."""
        return cls(INTERVAL * error, after)

    def blocks(self, timing: Schedule) -> int:
        """Blocks until the curve is decided, and the share that each further process adds.

        Where all dims are alike that is when the interval of penalties is about the tolerance,
        where some lie near it when it is ``finest``: the geometric mean is at most off by the same
        factor either way.
        """
        wanted = self.after * (self.half / sqrt(timing.finest * timing.tolerance / 2)) ** 2
        looks = (timing.blocks << n for n in range(LOOKS))
        decided = next((n for n in looks if n >= wanted), timing.most_blocks)
        added = (timing.processes - 1) * timing.blocks // timing.processes
        return min(timing.most_blocks, decided + added)


GUESSED = Width.of(GUESSED_ERROR, PROBED_BLOCKS)


@dataclass(frozen=True)
class TimeEstimate:
    """``seconds`` that the sweep may take, at most its budget. ``longest_s`` is where every
    curve goes on to its last block. ``calls`` were made for it; with none it is a guess."""

    seconds: float
    longest_s: float
    calls: int = 0


@dataclass(frozen=True)
class _Probe:
    """What a call of a curve takes (µs), and a dim's error after :data:`PROBED_BLOCKS` blocks."""

    call_us: float
    error: float
    calls: int = 0


def estimate(
    suite: Suite,
    device_kind: str,
    device_name: str = "",
    device: Device | None = None,
    budget_s: float | None = None,
) -> TimeEstimate:
    """What the suite may take. Raises :class:`SuiteError`.

    With a ``device`` some dims of each curve are called on it, for :data:`PROBE_S`.
    """
    timing = suite.timing
    roof = ROOFS.get(device_name) or ASSUMED.get(device_kind) or ASSUMED["cpu"]
    curves = suite.curves(device_kind)
    probes = _probed(curves, device, timing.reuse_mib << 20, roof) if device else {}
    slower = median([p.call_us / _guess_us(curves[i], roof) for i, p in probes.items()] or [1.0])
    error = median([p.error for p in probes.values()] or [GUESSED_ERROR])
    sums = [0.0, 0.0]
    for number, plan in enumerate(curves):
        guess = _Probe(slower * _guess_us(plan, roof), error)
        probe = probes.get(number, guess)
        slots = _slots(plan, timing)
        block_s = (BLOCK_US + slots * (CALL_US + probe.call_us)) / 1e6
        sums[0] += block_s * Width.of(probe.error, PROBED_BLOCKS).blocks(timing)
        sums[1] += block_s * timing.most_blocks
    start = START_S.get(device_kind, 0.0) * timing.processes
    budget = budget_s or timing.budget_s or inf
    calls = sum(probe.calls for probe in probes.values())
    return TimeEstimate(start + min(sums[0], budget), start + min(sums[1], budget), calls)


def guessed_s(plan: CurvePlan, timing: Schedule, kind: str, name: str = "") -> float:
    """What a curve's blocks may take on a device, by its points' work alone."""
    roof = ROOFS.get(name) or ASSUMED.get(kind) or ASSUMED["cpu"]
    block_us = BLOCK_US + _slots(plan, timing) * (CALL_US + _guess_us(plan, roof))
    return block_us / 1e6 * GUESSED.blocks(timing)


def _slots(plan: CurvePlan, timing: Schedule) -> int:
    """Dims of a curve with their replicates; a refined axis has a share of them."""
    dims = len(plan.points)
    if len(plan.refined) >= MEASURE_ALL_BELOW:
        dims -= len(plan.refined) - len(plan.refined) // LARGEST_SHARE
    return dims + min(dims, max(timing.least_replicates, round(timing.replicates * dims)))


def _probed(
    curves: Sequence[CurvePlan], device: Device, reuse_bytes: int, roof: Roof
) -> dict[int, _Probe]:
    """By the curve's number; the longest calls first, while there is time."""
    until = time.monotonic() + PROBE_S
    found: dict[int, _Probe] = {}
    for number in sorted(range(len(curves)), key=lambda i: -_guess_us(curves[i], roof)):
        probe = _probe(curves[number], device, reuse_bytes)
        if probe is not None:
            found[number] = probe
        if time.monotonic() >= until:
            break
    return found


def _probe(plan: CurvePlan, device: Device, reuse_bytes: int) -> _Probe | None:
    """A few blocks of some of a curve's dims; None where none of them can be called."""
    dims = plan.dims
    places = np.unique(np.linspace(0, len(dims) - 1, PROBED_SLOTS).round().astype(int))
    try:
        session = device.session([Slot(plan.points[dims[i]]) for i in places], reuse_bytes)
        order = [i for i in range(len(places)) if i not in session.failed]
        rows = [block_row(session.block(order).calls) for _ in range(PROBED_BLOCKS)]
        session.close()
    except MeasurementError:
        return None
    matrix = log_matrix(rows, len(places))
    if np.isnan(matrix).all():
        return None
    fit = fit_blocks(matrix)
    known = [e for e in fit.error if isfinite(e)]
    calls = int(np.sum(~np.isnan(matrix)))
    return _Probe(float(np.nanmean(np.exp(matrix))), median(known or [GUESSED_ERROR]), calls)


def _guess_us(plan: CurvePlan, roof: Roof) -> float:
    """A call of the curve's middle dim."""
    point: Point = plan.points[plan.dims[len(plan.dims) // 2]]
    operator = operators.get(point.operator)
    dtype = point.dtype if point.dtype in roof.tflops else next(iter(roof.tflops))
    least = roof.least_us(operator.flops(point), operator.bytes_moved(point), dtype)
    return max(1.0, (least or 0.0) / REACHED)
