"""Edges are confirmed in pairs: drift that passed for a cliff does not survive, cliffs do."""

import random

import pytest

from gacprof.errors import MeasurementError
from gacprof.measure.recorded import RecordedDevice
from gacprof.points import Environment
from gacprof.sweeping import build_map_of
from gacprof.sweeping.confirm import (
    FILE,
    Edge,
    confirm,
    confirm_run,
    edges_of,
    judge,
    read_verdicts,
)
from gacprof.sweeping.run import run_sweep
from gacprof.sweeping.suite import Timing, parse_suite


def suite(**timing):
    sweep = {
        "operator": "linear",
        "axis": "K",
        "values": [{"from": 1, "to": 100}],
        "dims": {"M": 1, "N": 8},
        "flags": {"layout": "nn"},
    }
    return parse_suite({"name": "t", "timing": timing, "sweep": [sweep]}, "t")


class Drifting:
    """100 µs below K = 50 and 125 µs from there on, on a clock that drifts with every call."""

    def __init__(self, drift: float, cliff: float = 1.25) -> None:
        self.calls, self.drift, self.cliff, self.draw = 0, drift, cliff, random.Random(1)

    def __call__(self, point, n):
        self.calls += n
        level = 100.0 * (self.cliff if point.dim["K"] >= 50 else 1.0)
        slow = 1 + self.drift * self.calls
        return [level * slow * self.draw.gauss(1, 0.005) for _ in range(n)]


def sides(device):
    points = sorted(suite().points("recorded"), key=lambda p: p.dim["K"])
    return Edge(points[48], points[49], 0.25), Edge(points[20], points[21], 0.25)


def test_a_cliff_is_confirmed_and_drift_is_not():
    device = RecordedDevice(Drifting(drift=1e-4))
    real, feigned = sides(device)
    found = confirm(real, device, Timing())
    assert found.verdict == "slower" and found.pairs == 6
    assert found.low <= found.ratio <= found.high
    assert found.ratio == pytest.approx(1.25, rel=0.02)
    assert confirm(feigned, RecordedDevice(Drifting(0)), Timing()).verdict == "ambiguous"


def test_a_drop_is_faster():
    device = RecordedDevice(Drifting(0, cliff=0.8))
    assert confirm(sides(device)[0], device, Timing()).verdict == "faster"


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ([1.1, 1.2, 1.1, 1.3, 1.1, 1.01], "slower"),
        ([0.9, 0.8, 0.99, 0.9, 0.7, 0.9], "faster"),
        ([1.1, 1.2, 1.1, 1.3, 1.1, 0.99], "ambiguous"),
        ([1.1, 1.2, 1.1, 1.3, 1.1], "ambiguous"),
    ],
)
def test_a_verdict_needs_the_whole_interval_on_one_side(ratios, verdict):
    assert judge(ratios) == verdict


def test_verdicts_are_stored_with_the_run(tmp_path):
    device = RecordedDevice(Drifting(0))
    run_sweep(suite(), device, tmp_path / "run")
    assert read_verdicts(tmp_path / "run") == []
    verdicts = confirm_run(tmp_path / "run", device)
    assert (tmp_path / "run" / FILE).exists()
    assert read_verdicts(tmp_path / "run") == verdicts
    edges = edges_of(build_map_of(tmp_path / "run"), 10)
    assert [(e.before.dim["K"], e.after.dim["K"]) for e in edges] == [(49, 50)]
    assert [v.verdict for v in verdicts] == ["slower"]


def test_a_side_that_fails_is_told():
    def answer(point, n):
        if point.dim["K"] == 50:
            raise RuntimeError("no such kernel")
        return [1.0] * n

    device = RecordedDevice(answer)
    found = confirm(sides(device)[0], device, Timing())
    assert (found.verdict, found.ratio, found.reason) == ("failed", None, "no such kernel")


def test_verdicts_are_not_taken_on_another_device(tmp_path):
    run_sweep(suite(), RecordedDevice(Drifting(0)), tmp_path / "run")
    other = RecordedDevice(Drifting(0), Environment("recorded", "another", "none"))
    with pytest.raises(MeasurementError, match="measured elsewhere"):
        confirm_run(tmp_path / "run", other)
