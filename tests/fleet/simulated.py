"""Devices without hardware, opened in workers by the tests: the same times on every call, or noisy
ones, on models of several names; some are slower than the others."""

from __future__ import annotations

import os
import time
from functools import partial
from random import Random

from recorded_device import RecordedDevice
from suites import over, suite_of

from gacprof.core.points import Environment
from gacprof.sweeping import build_map_of

STACK = {"torch": "2.0", "driver": "550"}


def latency(point, period=8, noise=0.0, slower=1.0, draw=None, pause_s=0.0):
    """Some µs a unit of K, a third more where K is no multiple of ``period``."""
    if pause_s:
        time.sleep(pause_s)
    us = point.dim["K"] * point.dim["M"] * (1.0 if point.dim["K"] % period == 0 else 1.3)
    return us * slower * (draw.lognormvariate(0, noise) if noise else 1.0)


class Logged(RecordedDevice):
    """Writes a line to a file for every block that it makes."""

    def __init__(self, log, *args) -> None:
        super().__init__(*args)
        self._log = log

    def blocks(self, wanted):
        made = super().blocks(wanted)
        with open(self._log, "a") as log:  # noqa: PTH123 - appended whole
            log.write("b\n" * len(made))
        return made


def open_one(name="A", driver="550", seed=0, log=None, **how) -> RecordedDevice:
    environment = Environment("recorded", name, "none", stack={**STACK, "driver": driver})
    answer = partial(latency, draw=Random(f"{seed}:{os.getpid()}"), **how)
    return Logged(log, answer, environment) if log else RecordedDevice(answer, environment)


def opener_on(place, **how):
    """By the resource that a node of the test's cluster has: ``sim_A``."""
    names = [key[4:] for key in place.resources if key.startswith("sim_")]
    return partial(open_one, (names or ["A"])[0], **how)


def findings(folder):
    """A map's curves, without how often each dim was called."""
    return [c.model_dump(exclude={"points": {"count"}}) for c in build_map_of(folder).curves]


def suite(curves=6, first=64, last=96, **timing):
    dims = {"M": list(range(1, curves + 1)), "N": 64}
    return suite_of(over("K", range(first, last + 1), dims, dtype="float32"), **timing)
