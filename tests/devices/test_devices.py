"""Devices time points in the order asked for; a point that fails does not take others with it."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Iterator, Sequence
from contextlib import closing
from statistics import median

import pytest
import risky_operator
import torch

from gacprof.core.errors import MeasurementError
from gacprof.core.points import Axis, Point
from gacprof.devices.cpu import REUSE_BYTES, CpuDevice
from gacprof.devices.device import Device, device_name, open_device
from gacprof.devices.environment import read_environment
from gacprof.devices.threads import ComputeThreads, lost_core
from gacprof.operators import canonical


@pytest.fixture(scope="module")
def cpu() -> Iterator[Device]:
    device = open_device("cpu")
    yield device
    device.close()


@pytest.fixture(autouse=True)
def forget_calls() -> None:
    risky_operator.CALLS.clear()
    risky_operator.ADDRESSES.clear()


def risky(*sizes: int, cache: str = "warm") -> list[Point]:
    axis = Axis("risky", "K", sizes, {"M": 4, "N": 64}, "float32", {"cache": cache})
    return [canonical(axis.point(size)) for size in sizes]


def products(*sizes: int, dtype: str = "float32") -> list[Point]:
    axis = Axis("linear", "N", sizes, {"M": 64, "K": 256}, dtype)
    return [canonical(axis.point(size)) for size in sizes]


def medians(device: Device, points: Sequence[Point], blocks: int) -> list[float]:
    """Median time of each point's calls in blocks of random order."""
    [session] = device.prepare([points])
    times: list[list[float]] = [[] for _ in points]
    draw = random.Random(0)
    for _ in range(blocks):
        order = draw.sample(range(len(points)), len(points))
        for index, us in zip(order, session.time_block(order).times_us, strict=True):
            times[index].append(us)
    return [median(us for us in row if not math.isnan(us)) for row in times]


def test_ten_times_the_work_takes_longer(cpu: Device) -> None:
    small, large = medians(cpu, products(64, 2048), blocks=15)
    assert 0 < small < large


def test_a_point_that_raises_is_a_failure_of_its_own(cpu: Device) -> None:
    [session] = cpu.prepare([risky(risky_operator.RAISES, risky_operator.FINE)])
    assert session.failures == {0: "no such size"}
    times = session.time_block([0, 1, 0]).times_us
    assert len(times) == 3 and math.isnan(times[0]) and math.isnan(times[2])


@pytest.mark.parametrize(
    "point",
    [
        Point("linear", {"M": 8, "N": 8, "K": 8}, "tf32"),
        Point("linear", {"M": 2**20, "N": 2**20, "K": 2**20}, "float32"),
        Point("row_sum", {"rows": 8, "K": 8}, "float16"),
    ],
)
def test_what_a_cpu_cannot_time_says_why(cpu: Device, point: Point) -> None:
    [session] = cpu.prepare([[canonical(point), *products(8)]])
    assert list(session.failures) == [0] and session.failures[0]


def test_a_replicate_has_its_operands_at_another_address(cpu: Device) -> None:
    [session] = cpu.prepare([risky(64, 65)])
    risky_operator.ADDRESSES.clear()
    session.time_block([0, 1, 0])
    one, two = risky_operator.ADDRESSES[64][-2:]
    assert one[0] != two[0] and one[1] != two[1] and one[0] != one[1]
    assert risky_operator.ADDRESSES[65][-1] == one


def test_cold_weights_move_through_memory(cpu: Device) -> None:
    [session] = cpu.prepare([risky(64, 65, cache="cold")])
    session.time_block([0, 1] * 8)
    weights = [w for size in (64, 65) for _, w in risky_operator.ADDRESSES[size][-8:]]
    assert len(set(weights)) == 16
    assert len({x for x, _ in risky_operator.ADDRESSES[64]}) == 2
    assert max(weights) - min(weights) < REUSE_BYTES


def test_calls_that_waited_for_a_core_are_lost_whatever_they_took() -> None:
    assert lost_core([100.0, 100.0, 900.0], [0.0, 3.0, 1.0]) == [False, True, False]


def test_bound_threads_are_set_free_again() -> None:
    before = os.sched_getaffinity(0)
    with closing(ComputeThreads()):
        assert len(os.sched_getaffinity(0)) in (1, len(before))
    assert os.sched_getaffinity(0) == before


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(MeasurementError):
        open_device("cuda:99")
    with pytest.raises(MeasurementError):
        open_device("tpu")
    assert device_name("cuda") == "cuda:0" and device_name("cpu") == "cpu"


def test_an_environment_says_device_and_versions(cpu: Device) -> None:
    environment = read_environment("cpu")
    assert environment == cpu.environment and isinstance(cpu, CpuDevice)
    assert environment.kind == "cpu" and environment.stack["torch"] == torch.__version__
    assert environment.facts["threads"] == torch.get_num_threads()
