"""What noise can cause and what it can hide, on a seeded device that drifts like a shared machine.

The machine's level wanders by 30 % (its clock, its neighbours), each call is off by a few percent
and only ever slower, one call in twenty takes twice as long, and each process favours some dims.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from recorded_device import RecordedDevice
from suites import over, suite_of

from gacprof.sweeping import build_map_of, run_sweep
from gacprof.sweeping.suite import Suite

DIMS = range(1001, 1066)
PLACES = (1014, 1027, 1040, 1053)


def suite(**timing) -> Suite:
    return suite_of(over("K", DIMS, {"M": 1, "N": 8}), **{"most_blocks": 96} | timing)


class Shared(RecordedDevice):
    """100 µs, and by ``jump`` more between the first and second, third and fourth place."""

    def __init__(self, seed: int, jump: float = 0.0, between: float = 0.002) -> None:
        super().__init__(self._time)
        self._draw, self._jump, self._between = np.random.default_rng(seed), jump, between
        self._calls = 0
        self.renew()

    def renew(self) -> None:
        """A fresh process: memory and code lie elsewhere."""
        self._favoured = self._draw.normal(0, self._between, len(DIMS))

    def _time(self, point):
        self._calls += 1
        raised = sum(point.dim["K"] >= place for place in PLACES) % 2
        level = 0.3 * math.sin(self._calls / 4000)
        own = self._favoured[point.dim["K"] - DIMS[0]] + self._draw.exponential(0.02)
        own += math.log(2) * (self._draw.random() < 0.05)
        return 100.0 * (1 + self._jump * raised) * math.exp(level + own)


def curve_of(device, folder, **timing):
    run_sweep(suite(**timing), device, folder)
    return build_map_of(folder).curves[0]


def test_a_device_of_equal_dims_has_no_cliff_and_no_misaligned_dim(tmp_path):
    """Three sweeps, 192 pairs of neighbours; test_recorded_noise.py has two hundred curves."""
    safe = 0
    for seed in range(3):
        curve = curve_of(Shared(seed), tmp_path / f"{seed}")
        assert (curve.cliffs, curve.misaligned, curve.period) == ([], [], None)
        safe += len(curve.safe)
    assert safe > 0.8 * 3 * len(DIMS)


@pytest.mark.parametrize("jump", [0.03, 0.06, 0.3])
def test_planted_steps_are_found_where_they_are(tmp_path, jump):
    """On a machine that wanders by 30 %, steps of 3 %."""
    found = []
    for seed in range(2):
        curve = curve_of(Shared(seed, jump), tmp_path / f"{seed}")
        found += [cliff.after for cliff in curve.cliffs]
        slow = {d for d in DIMS if sum(d >= place for place in PLACES) % 2}
        assert not slow & set(curve.safe) and set(curve.misaligned) <= slow
    assert set(found) == set(PLACES)
    assert len(found) >= (6 if jump < 0.05 else 8)


def test_the_floor_tells_how_much_two_sweeps_of_one_device_differ(tmp_path):
    """Of two independent sweeps about 95 % of the dims agree within the floor of either."""
    noise, log_us = [], []
    for seed in range(2):
        timing = {"replicates": 1.0, "processes": 6, "most_blocks": 48}
        run_sweep(suite(**timing), Shared(seed, between=0.01), tmp_path / f"{seed}")
        made = build_map_of(tmp_path / f"{seed}")
        noise.append(made.floor)
        log_us.append(np.log(made.curves[0].points.latency_us))
    apart = log_us[0] - log_us[1]
    assert 0.85 < np.mean(np.abs(apart - np.median(apart)) <= np.log1p(np.mean(noise))) < 1.0


def test_what_one_process_favours_is_noise_to_a_sweep_of_several(tmp_path):
    """Within one process replicates agree, however far off their dim is there."""
    one, three = (curve_of(Shared(1, between=0.03), tmp_path / f"{n}", processes=n) for n in (1, 3))
    assert one.misaligned, "a single process takes its own quirks for the device's"
    assert not three.misaligned


def test_a_budget_shares_the_time_among_the_processes(tmp_path):
    favoured = Shared(0, between=0.03)  # by so much that none of the processes is spared
    run_sweep(suite(budget_s=0.6), favoured, tmp_path / "run")
    assert build_map_of(tmp_path / "run").file.noise.processes == 3


def test_the_blocks_still_to_come_are_told_within_a_factor_of_two(tmp_path):
    """From the first look on; before it nothing is known of the device's noise."""
    totals = []
    done = run_sweep(
        suite(), Shared(0), tmp_path / "run", progress=lambda done, total, _: totals.append(total)
    )
    assert suite().timing.blocks_until(9.0, 12) == 96  # so noisy that none of its looks decides
    looked = totals[20:]
    assert 0.5 * done.blocks < min(looked) and max(looked) < 2 * done.blocks


class Contended(RecordedDevice):
    """Every call waits for the scheduler: all dims take 8 ms alike."""

    def session(self, slots, reuse_bytes=0):
        made = super().session(slots)
        calm = made.block

        def disturbed(order):
            times = calm(order)
            return replace(times, calls=tuple(c._replace(disturbed=True) for c in times.calls))

        made.block = disturbed
        return made


def test_a_sweep_takes_no_dim_for_decided_that_its_map_leaves_open(tmp_path):
    """The judge of the sweep is that of the map: a contended machine decides nothing."""
    done = run_sweep(suite(), Contended(lambda point: 8000.0), tmp_path / "run")
    assert done.undecided == 1 and done.blocks >= 96
    assert build_map_of(tmp_path / "run").curves[0].safe == []
