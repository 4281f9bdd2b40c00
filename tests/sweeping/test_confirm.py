"""Edges are confirmed in pairs: drift that passed for a cliff does not survive, cliffs do."""

import random

import pytest
from gacprof.sweeping.confirm import (
    Edge,
    confirm,
    confirm_run,
    edges_of,
    judge,
)
from gacprof.sweeping.verdicts import FILE, read_verdicts

from gacprof.cliffmap import CliffMap
from gacprof.cliffmap.cliff import Paired
from gacprof.errors import MeasurementError
from gacprof.measure.recorded import RecordedDevice
from gacprof.points import Environment
from gacprof.sweeping import build_map_of
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


class Feigning(Drifting):
    """A cliff at 50, and while the sweep lasts a slow stretch from 30 to 39 that is none."""

    sweeping = True

    def __call__(self, point, n):
        slow = 1.2 if self.sweeping and 30 <= point.dim["K"] < 40 else 1.0
        return [slow * t for t in super().__call__(point, n)]


@pytest.fixture
def feigned(tmp_path):
    answer = Feigning(0)
    device = RecordedDevice(answer)
    run_sweep(suite(), device, tmp_path / "run")
    answer.sweeping = False
    return tmp_path / "run", device


def cliffs(curve):
    return [(cliff.before, cliff.after) for cliff in curve.cliffs]


def test_an_edge_that_pairs_do_not_bear_out_is_no_cliff_of_the_map(feigned, tmp_path):
    folder, device = feigned
    before = build_map_of(folder).curves[0]
    assert cliffs(before) == [(29, 30), (39, 40), (49, 50)]
    assert all(cliff.paired is None for cliff in before.cliffs) and not before.refuted
    verdicts = {(v.before, v.after): v for v in confirm_run(folder, device)}
    built = build_map_of(folder)
    after = built.curves[0]
    assert cliffs(after) == [(49, 50)]
    assert [(c.before, c.after) for c in after.refuted] == [(29, 30), (39, 40)]
    for cliff in [*after.cliffs, *after.refuted]:
        told = next(v for (a, _), v in verdicts.items() if f"K={cliff.before} " in a)
        assert (cliff.paired.ratio, cliff.paired.pairs) == (told.ratio, told.pairs)
    built.save(tmp_path / "map.json")
    assert CliffMap.load(tmp_path / "map.json").curves == built.curves


def test_tiers_do_not_end_at_a_refuted_edge(feigned):
    folder, device = feigned
    assert len(build_map_of(folder).curves[0].tiers) == 4
    confirm_run(folder, device)
    assert [(t.first, t.last) for t in build_map_of(folder).curves[0].tiers] == [(1, 49), (50, 100)]


def test_confirming_again_forgets_no_refuted_edge(feigned):
    folder, device = feigned
    first = confirm_run(folder, device)
    again = confirm_run(folder, device)
    assert [(v.before, v.after) for v in again] == [(v.before, v.after) for v in first]
    assert cliffs(build_map_of(folder).curves[0]) == [(49, 50)]


def test_an_edge_whose_side_fails_in_turns_stays_as_the_sweep_saw_it(feigned):
    folder, device = feigned

    def refuse(point, n):
        raise RuntimeError("out of luck")

    confirm_run(folder, RecordedDevice(refuse, device.environment))
    curve = build_map_of(folder).curves[0]
    assert len(curve.cliffs) == 3 and all(cliff.paired is None for cliff in curve.cliffs)


@pytest.mark.parametrize("text", ["", "[]", '{"schema": "gacprof.confirmed/9", "edges": []}'])
def test_verdicts_that_are_none_are_told(feigned, text):
    (feigned[0] / FILE).write_text(text)
    with pytest.raises(MeasurementError, match="holds no verdicts"):
        build_map_of(feigned[0])


@pytest.mark.parametrize(
    ("low", "high", "jump", "stands"),
    [
        (1.02, 1.08, 0.05, True),  # beyond the work's own growth of 1 %, and to beyond the floor
        (1.02, 1.03, 0.05, False),  # slower, but not by as much as the floor
        (1.005, 1.08, 0.05, False),  # may be no more than the work
        (0.92, 0.98, 0.05, False),  # faster, where the sweep saw slower
        (0.92, 0.98, -0.05, True),
        (0.98, 0.99, -0.05, False),
        (1.02, 1.08, -0.05, False),
    ],
)
def test_pairs_bear_a_cliff_out_by_the_rule_for_edges(low, high, jump, stands):
    paired = Paired(ratio=(low + high) / 2, low=low, high=high, pairs=6)
    assert paired.bear_out(100, 101, jump, floor=0.04) == stands


def test_pairs_are_doubled_while_they_disagree():
    visits = iter(range(100))

    def answer(point, n):
        disturbed = n > 1 and next(visits) == 4  # the third pair's first side
        return [(3.0 if disturbed else 1.0) * (1.1 if point.dim["K"] >= 50 else 1.0)] * n

    device = RecordedDevice(answer)
    found = confirm(sides(device)[0], device, Timing(count=10))
    assert (found.verdict, found.pairs, found.low) == ("slower", 12, pytest.approx(1.1))
