"""Level blocks: curves are as fast as they are in turn with others, and keep their own shapes."""

from __future__ import annotations

import random

import numpy as np
import pytest
from recorded_device import RecordedDevice
from suites import over, suite_of

from gacprof.core.points import LEVEL
from gacprof.devices.device import BlockTimes, TimedCall
from gacprof.devices.worker import WorkerLostError
from gacprof.stats.noise import checks
from gacprof.sweeping import build_map_of, read_blocks
from gacprof.sweeping.run import run_sweep

OUTSIDE = {64: 1.3, 128: 1.1, 256: 1.0}
"""By N: how much longer a call takes after those of other curves."""


def own_us(point) -> float:
    """In blocks of its own curve. Curves over N and over K hold the same points."""
    d = point.dim
    return 10.0 * d["N"] / 64 * (1.4 if d["K"] % 8 else 1.0)


class Caching(RecordedDevice):
    """Calls of one curve find what they need in cache; in turn with others they do not."""

    def __init__(self, noise: float = 0.0) -> None:
        self.draw = random.Random(0)
        super().__init__(lambda point: own_us(point) * self.draw.gauss(1, noise))

    def mixed(self, wanted):
        return BlockTimes(
            tuple(
                TimedCall(place, self._answer(point) * OUTSIDE[point.dim["N"]])
                for place, (session, slot) in enumerate(wanted)
                for point in [session._slots[slot].point]
            )
        )


def suite(values=(96, 100, 104, 107, 112), **timing):
    return suite_of(over("K", values, {"M": 1, "N": [64, 128, 256]}), **timing)


def test_latencies_are_those_in_turn_with_other_curves(tmp_path):
    run_sweep(suite(), Caching(0.02), tmp_path / "run")
    levels = [block for block in read_blocks(tmp_path / "run") if block.axis == LEVEL]
    assert len(levels) >= 8
    assert all(len({c.point.dim["N"] for c in block.calls}) == 3 for block in levels)
    found = build_map_of(tmp_path / "run", "caching")
    for curve in found.curves:
        n = curve.fixed["N"]
        for d, us in curve.latencies.items():
            usual = 10.0 * n / 64 * (1.4 if d % 8 else 1.0)
            assert us == pytest.approx(usual * OUTSIDE[n], rel=0.08)
        assert list(curve.misaligned) == [100, 107]
    [check] = [check for check in found.file.checks if check.name == "levels"]
    assert check.passed and check.effect == pytest.approx(0.1, abs=0.03)
    for least, most, passes in ((0.8, 1.2, True), (1.0, 2.0, False), (0.3, 1.0, False)):
        moved = [np.log([share]) for share in (least, 1.0, most)]
        assert [c.passed for c in checks([], moved) if c.name == "levels"] == [passes]


def test_level_blocks_call_what_a_process_has_prepared(tmp_path):
    """A later process prepares a sample of a decided curve's slots."""
    run_sweep(suite(range(96, 128)), Caching(), tmp_path / "run")
    levels = [block for block in read_blocks(tmp_path / "run") if block.axis == LEVEL]
    assert {block.process for block in levels} == {0, 1}
    for call in (call for block in levels for call in block.calls):
        assert call.us == pytest.approx(own_us(call.point) * OUTSIDE[call.point.dim["N"]])


def test_without_level_blocks_a_curve_is_at_its_own_level(tmp_path):
    run_sweep(suite(), RecordedDevice(own_us), tmp_path / "run")
    found = build_map_of(tmp_path / "run", "recorded")
    assert found.curve("linear", "K", N=64).points.latency_us[0] == pytest.approx(10.0)
    assert not any(check.name == "levels" for check in found.file.checks)


def test_a_sweep_goes_on_where_a_level_block_killed_the_worker(tmp_path):
    class Dying(Caching):
        def mixed(self, wanted):
            raise WorkerLostError("the worker process was killed by SIGKILL")

    summary = run_sweep(suite(), Dying(), tmp_path / "run")
    assert summary.points == 15 and not summary.unfinished
    assert len(build_map_of(tmp_path / "run", "dying").curves) == 3
