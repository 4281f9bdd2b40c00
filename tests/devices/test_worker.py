"""A worker process is replaced when a point kills it or hangs; the other points go on."""

from __future__ import annotations

import math

import pytest
import risky_operator

from gacprof.core.points import Axis, Point
from gacprof.devices.worker import IsolatedDevice
from gacprof.operators import canonical


def points(*sizes: int, operator: str = "risky") -> list[Point]:
    axis = Axis(operator, "K", sizes, {"M": 4, "N": 64}, "float32")
    return [canonical(axis.point(size)) for size in sizes]


def test_a_point_that_kills_its_process_is_a_failure() -> None:
    device = IsolatedDevice("cpu")
    sizes = risky_operator.KILLS, risky_operator.RAISES, risky_operator.FINE
    [session] = device.prepare([points(*sizes)])
    assert sorted(session.failures) == [0, 1] and session.failures[1] == "no such size"
    times = session.time_block([2, 1, 0, 2]).times_us
    assert len(times) == 4 and math.isnan(times[1]) and math.isnan(times[2])
    assert not session.kernels and device.environment.kind == "cpu"
    device.close()


def test_the_point_that_kills_is_found_among_all_axes() -> None:
    device = IsolatedDevice("cpu")
    early = device.prepare([points(64, operator="linear")])[0]
    axes = [points(risky_operator.FINE, 65), points(66, risky_operator.KILLS, 67)]
    fine, killing = device.prepare(axes)
    assert not fine.failures and sorted(killing.failures) == [1]
    assert not any(map(math.isnan, killing.time_block([2, 0, 2]).times_us))
    assert len(early.time_block([0, 0]).times_us) == 2 and not early.failures
    assert not any(map(math.isnan, fine.time_block([0, 1]).times_us))
    device.close()


@pytest.mark.slow
def test_a_point_that_hangs_is_a_failure_and_other_sessions_go_on() -> None:
    device = IsolatedDevice("cpu", call_limit_s=5.0)
    [session] = device.prepare([points(risky_operator.HANGS_LATER, risky_operator.FINE)])
    [other] = device.prepare([points(64, operator="linear")])
    assert not session.failures
    assert all(map(math.isnan, session.time_block([0, 1]).times_us))
    assert sorted(session.failures) == [0]
    assert len(other.time_block([0, 0]).times_us) == 2 and not other.failures
    assert len(session.time_block([1, 0, 1]).times_us) == 3 and sorted(session.failures) == [0]
    device.close()
