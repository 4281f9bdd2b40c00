"""A planted device: multiples of 8 are served well, everything else 40 % slower."""

from __future__ import annotations

from gacprof.core.points import Environment, Point
from gacprof.devices.recorded import RecordedDevice

TOKENS = {1: 1.0, 64: 1.0}
PLANTED = Environment("recorded", "planted device", "none", {}, {"planted": "1"})


def planted_latency(point: Point) -> float:
    """µs: work plus a launch, and 40 % more where a dim is no multiple of 8."""
    if point.operator != "linear":
        return 50.0
    m, n, k = (point.dim[axis] for axis in "MNK")
    slow = 1.4 if n % 8 or k % 8 else 1.0
    return (2.0 + m * n * k / 1e6) * slow


def planted_device() -> RecordedDevice:
    return RecordedDevice(planted_latency, PLANTED)
