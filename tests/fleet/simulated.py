"""Devices without hardware, opened in workers by the tests: the same times on every call, or noisy
ones, on models of several names; some are slower than their sisters."""

from __future__ import annotations

import os
import time
from functools import partial
from random import Random

from gacprof.core.points import Environment
from gacprof.devices.recorded import RecordedDevice
from gacprof.sweeping.suite import parse_suite

STACK = {"torch": "2.0", "driver": "550"}


def latency(point, period=8, noise=0.0, slower=1.0, draw=None, pause_s=0.0):
    """Some µs a unit of K, a third more where K is no multiple of ``period``."""
    if pause_s:
        time.sleep(pause_s)
    us = point.dim["K"] * point.dim["M"] * (1.0 if point.dim["K"] % period == 0 else 1.3)
    return us * slower * (draw.lognormvariate(0, noise) if noise else 1.0)


def open_one(name="A", driver="550", seed=0, **how) -> RecordedDevice:
    environment = Environment("recorded", name, "none", stack={**STACK, "driver": driver})
    return RecordedDevice(
        partial(latency, draw=Random(f"{seed}:{os.getpid()}"), **how), environment
    )


def suite(curves=6, first=64, last=96, name="t", **timing):
    return parse_suite(
        {
            "name": name,
            "timing": timing,
            "sweep": [
                {
                    "operator": "linear",
                    "axis": "K",
                    "values": [{"from": first, "to": last}],
                    "dims": {"M": list(range(1, curves + 1)), "N": 64},
                    "dtype": "float32",
                }
            ],
        },
        "t",
    )
