"""How long a sweep will take: by the points' work, and a few calls where the device is here."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from statistics import median

from gacprof.core.errors import MeasurementError
from gacprof.core.points import Point
from gacprof.devices.datasheet import ROOFS, Roof
from gacprof.devices.device import Device, Slot
from gacprof.sweeping.refine import LARGEST_SHARE, MEASURE_ALL_BELOW
from gacprof.sweeping.suite import CurvePlan, Schedule, Suite

START_S = {"cuda": 8.0, "cpu": 4.0}
"""A fresh process: importing torch and opening the device."""
CALL_US, BLOCK_US = 60.0, 1_500.0
"""A call beside what is timed, and a block: the engine's share, its line on disk."""
PROBE_S, PROBED_CALLS = 3.0, 4
SLOWEST = 5.0
"""How many times as long as guessed a call may take: what is called fits the time left even so."""
ASSUMED = {
    "cuda": ROOFS["NVIDIA H100 80GB HBM3"],
    "cpu": Roof({"float32": 0.05, "bfloat16": 0.05, "float16": 0.01, "int8": 0.05}, 10.0),
}
"""Where the device is not known: an H100, and a CPU of two slow cores."""


@dataclass(frozen=True)
class TimeEstimate:
    """``seconds`` that the sweep may take, at most its budget. ``longest_s`` is where every
    curve goes on to its last block. ``calls`` were made for it; with none it is a guess."""

    seconds: float
    longest_s: float
    calls: int = 0


def estimate(
    suite: Suite,
    device_kind: str,
    device_name: str = "",
    device: Device | None = None,
    budget_s: float | None = None,
) -> TimeEstimate:
    """What the suite may take. Raises :class:`SuiteError`.

    With a ``device`` some curves' middle dims are called on it, the shortest first, for
    :data:`PROBE_S`: how much longer they take than guessed is what all are taken to.
    """
    timing, curves = suite.timing, suite.curves(device_kind)
    roof = _roof(device_kind, device_name)
    guesses = [_guess_us(plan, roof) for plan in curves]
    probed = _probed(curves, guesses, device, timing.reuse_mib << 20) if device else {}
    guessed_us = sum(guesses[number] for number in probed)
    slower = sum(probed.values()) / guessed_us if probed else 1.0  # the longest calls count most
    blocks_us = [
        BLOCK_US + _slots(plan, timing) * (CALL_US + slower * guess)
        for plan, guess in zip(curves, guesses, strict=True)
    ]
    start = START_S.get(device_kind, 0.0) * timing.processes
    budget = budget_s or timing.budget_s or inf
    seconds, longest = (
        start + min(sum(blocks_us) / 1e6 * blocks, budget)
        for blocks in (timing.usual_blocks, timing.most_blocks)
    )
    return TimeEstimate(seconds, longest, PROBED_CALLS * len(probed))


def guessed_s(plan: CurvePlan, timing: Schedule, kind: str, name: str = "") -> float:
    """What a curve's blocks may take on a device, by its points' work alone."""
    guess = _guess_us(plan, _roof(kind, name))
    return (BLOCK_US + _slots(plan, timing) * (CALL_US + guess)) / 1e6 * timing.usual_blocks


def _roof(kind: str, name: str) -> Roof:
    return ROOFS.get(name) or ASSUMED.get(kind) or ASSUMED["cpu"]


def likely_points(plan: CurvePlan) -> list[Point]:
    """What is measured of a curve: all its points, of a refined axis a share at most."""
    step = LARGEST_SHARE if len(plan.refined) >= MEASURE_ALL_BELOW else 1
    chosen = {*sorted(plan.refined, reverse=True)[::step], *(plan.points.keys() - plan.refined)}
    return [point for d, point in plan.points.items() if d in chosen]


def _slots(plan: CurvePlan, timing: Schedule) -> int:
    dims = len(likely_points(plan))
    return dims + timing.replicates_of(dims)


def _probed(
    curves: Sequence[CurvePlan], guesses: Sequence[float], device: Device, reuse_bytes: int
) -> dict[int, float]:
    """What a call takes (µs) by its curve's number, while there is time for it."""
    until, found = time.monotonic() + PROBE_S, dict[int, float]()
    for guess, number in sorted((guess, number) for number, guess in enumerate(guesses)):
        if time.monotonic() + SLOWEST * PROBED_CALLS * guess / 1e6 > until:
            break
        plan = curves[number]
        try:
            session = device.session([Slot(_middle(plan))], reuse_bytes)
            times = [c.us for _ in range(PROBED_CALLS) for c in session.block([0]).calls]
            session.close()
        except MeasurementError:
            continue
        if len(times) == PROBED_CALLS:
            found[number] = median(times)
    return found


def _middle(plan: CurvePlan) -> Point:
    return plan.points[plan.dims[len(plan.dims) // 2]]


def _guess_us(plan: CurvePlan, roof: Roof) -> float:
    """A call of the curve's middle dim."""
    return max(1.0, roof.call_us(_middle(plan)))
