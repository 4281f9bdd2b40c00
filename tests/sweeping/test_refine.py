"""Refinement finds what the exhaustive sweep finds, at a quarter of the points."""

import random
from itertools import pairwise
from math import log1p, sqrt

import pytest

from gacprof.cliffmap import CliffMap
from gacprof.cliffmap.detect import edge_quantile, edges
from gacprof.core.errors import MeasurementError
from gacprof.core.fit import FEWEST_BLOCKS
from gacprof.devices.recorded import RecordedDevice
from gacprof.sweeping import build_map_of, read_blocks
from gacprof.sweeping.refine import Seen, differ, refine, residue_classes
from gacprof.sweeping.results import read_samples
from gacprof.sweeping.run import run_sweep
from gacprof.sweeping.suite import parse_suite

PUBLISHED = CliffMap.load("a100-published")
LONG = [c for c in PUBLISHED.file.curves if len(c.points.d) >= 900]
"""Figure 7's axes from 1024 to 2048: 928 and 979 dims could be read off the figure."""


def measured_by_refinement(latency: dict[int, float], floor: float, seed: int = 0) -> list[int]:
    known: dict[int, Seen] = {}
    going = refine(sorted(latency), floor, seed)
    wanted = next(going)
    while True:
        assert wanted and not known.keys() & set(wanted)
        known |= {d: Seen(latency[d], latency[d], latency[d]) for d in wanted}
        try:
            wanted = going.send(known)
        except StopIteration:
            return sorted(known)


def class_edges(latency: dict[int, float], floor: float) -> set[tuple[int, int]]:
    found = set()
    for d in residue_classes(latency):
        error = log1p(floor) / edge_quantile(len(d) - 1) / sqrt(2)
        t = [latency[size] for size in d]
        found |= {(e.before, e.after) for e in edges(d, t, [error] * len(d))}
    return found


def test_the_published_map_has_two_long_axes():
    assert [(c.axis, len(c.points.d)) for c in LONG] == [("M", 928), ("N", 979)]


@pytest.mark.parametrize("floor", [0.03, 0.04])
@pytest.mark.parametrize("curve", LONG, ids=lambda c: c.axis)
def test_every_published_tier_edge_is_found_with_a_quarter_of_the_points(curve, floor):
    """Neighbours in a residue class of 16 between which the exhaustive data has an edge are
    both measured, so that the edge is found exactly where it is."""
    latency = dict(zip(curve.points.d, curve.points.median_us, strict=True))
    wanted = class_edges(latency, curve.floor)
    assert len(wanted) >= 45
    for seed in range(5):
        chosen = measured_by_refinement(latency, floor, seed)
        assert len(chosen) <= len(latency) / 4
        assert wanted <= class_edges({d: latency[d] for d in chosen}, curve.floor)


def adaptive_suite(values=None, **timing):
    values = values or [{"from": 1024, "to": 2048}]
    sweep = {"operator": "linear", "axis": "N", "values": values, "dims": {"M": 2048, "K": 128}}
    timing = {"blocks": 9, "processes": 1, "replicates": 0.05} | timing
    return parse_suite({"name": "t", "timing": timing, "sweep": [sweep | ADAPTIVE]}, "t")


ADAPTIVE = {"strategy": "adaptive", "dtype": "float16", "flags": {"layout": "nn"}}


AXIS = dict(list(zip(LONG[1].points.d, LONG[1].points.median_us, strict=True))[100:750])
"""Dims enough for refinement, for tests that make a whole sweep of them."""


def replaying(curve):
    """The published curve as a device; dims that the figure does not tell fail."""
    at = dict(zip(curve.points.d, curve.points.median_us, strict=True))

    def answer(point):
        if point.dim["N"] not in at:
            raise MeasurementError("the figure does not tell")
        return at[point.dim["N"]]

    return RecordedDevice(answer)


@pytest.fixture
def few_calls(monkeypatch):
    """A recording without noise needs no more calls of a dim than a fit does."""
    monkeypatch.setattr("gacprof.sweeping.curve.COARSE_BLOCKS", FEWEST_BLOCKS)
    monkeypatch.setattr("gacprof.sweeping.curve.RESAMPLES_AT_LOOKS", 4)


def called(folder):
    return {call.point.dim["N"] for block in read_blocks(folder) for call in block.calls}


@pytest.mark.usefixtures("few_calls")
def test_a_sweep_of_a_recorded_device_refines_likewise(tmp_path):
    curve, latency = LONG[1], AXIS
    summary = run_sweep(adaptive_suite(list(latency)), replaying(curve), tmp_path / "run")
    chosen = called(tmp_path / "run")
    assert summary.points == len(chosen) <= len(latency) / 4
    found = class_edges({d: latency[d] for d in chosen}, curve.floor)
    assert class_edges(latency, curve.floor) <= found


@pytest.mark.usefixtures("few_calls")
def test_dims_added_later_are_tied_to_the_others(tmp_path):
    """On a machine that slows by half while the axis is refined, all dims are compared rightly."""
    recorded = replaying(LONG[1])
    calls = []

    def slowing(point):
        calls.append(point)
        return recorded._answer(point) * (1 + min(1.0, len(calls) / 4000) / 2)

    suite = adaptive_suite(list(AXIS))
    run_sweep(suite, RecordedDevice(slowing), tmp_path / "run")
    (made,) = build_map_of(tmp_path / "run").curves
    ratios = [t / AXIS[d] for d, t in zip(made.points.d, made.points.median_us, strict=True)]
    assert len(calls) > 3000
    assert max(ratios) / min(ratios) < 1.03


@pytest.mark.usefixtures("few_calls")
def test_an_interrupted_refinement_resumes_and_finds_the_same_edges(tmp_path):
    curve, latency = LONG[1], AXIS
    suite = adaptive_suite(list(latency))

    def stop_after(blocks):
        left = iter(range(blocks))

        def progress(done, total, point):
            if next(left, None) is None:
                raise KeyboardInterrupt

        return progress

    for blocks in (3, 8, 20):
        with pytest.raises(KeyboardInterrupt):
            run_sweep(
                suite, replaying(curve), tmp_path / "cut",
                resume=blocks > 3, progress=stop_after(blocks),
            )  # fmt: skip
    kept = read_blocks(tmp_path / "cut")
    assert len(kept) == 31
    run_sweep(suite, replaying(curve), tmp_path / "cut", resume=True)
    assert read_blocks(tmp_path / "cut")[: len(kept)] == kept
    chosen = called(tmp_path / "cut")
    assert len(chosen) <= len(latency) / 4
    found = class_edges({d: latency[d] for d in chosen}, curve.floor)
    assert class_edges(latency, curve.floor) <= found


def test_a_short_axis_is_measured_whole():
    assert measured_by_refinement(dict.fromkeys(range(64, 257), 1.0), 0.03) == list(range(64, 257))


def test_a_change_of_kernel_is_bisected_though_latency_does_not_tell():
    def seen(d):
        return Seen(10.0, 10.0, 10.0, ("early",) if d < 1500 else ("late",))

    known: dict[int, Seen] = {}
    going = refine(range(1000, 2000), 0.03)
    wanted = next(going)
    try:
        while True:
            known |= {d: seen(d) for d in wanted}
            wanted = going.send(known)
    except StopIteration:
        pass
    for d in residue_classes(range(1000, 2000)):
        before, after = next((a, b) for a, b in pairwise(d) if a < 1500 <= b)
        assert {before, after} <= known.keys()


def test_where_dims_begin_to_fail_is_located():
    known: dict[int, Seen] = {}
    going = refine(range(1, 1001), 0.03)
    wanted = next(going)
    try:
        while True:
            known |= {d: Seen(None if d > 777 else 5.0, 5.0, 5.0) for d in wanted}
            wanted = going.send(known)
    except StopIteration:
        pass
    assert {777, 778} & known.keys()
    assert len(known) <= 250


def test_noise_within_the_intervals_is_no_difference():
    assert not differ(Seen(10.0, 9.0, 11.5), Seen(11.0, 10.5, 12.0), 0.03)
    assert differ(Seen(10.0, 9.9, 10.1), Seen(11.0, 10.9, 11.2), 0.03)


def test_an_excursion_that_the_coarse_pass_missed_is_found_by_audit():
    """A narrow slow stretch of one class: found for most seeds that audit there, never lost
    once an audit has hit it."""
    latency = dict.fromkeys(range(1000, 3000), 10.0)
    for d in range(1500, 1800, 16):
        latency[d] = 20.0
    wanted = class_edges(latency, 0.05)
    assert len(wanted) == 2
    for seed in range(30):
        chosen = measured_by_refinement(latency, 0.03, seed)
        hit = any(latency[d] > 15 for d in chosen)
        found = class_edges({d: latency[d] for d in chosen}, 0.05)
        assert (wanted <= found) == hit


def test_a_noisy_device_does_not_make_refinement_measure_everything(tmp_path):
    draw = random.Random(1)
    noisy = RecordedDevice(lambda point: 10.0 * draw.gauss(1, 0.02))
    summary = run_sweep(adaptive_suite(most_blocks=40), noisy, tmp_path / "run")
    assert summary.points <= 1025 / 8


@pytest.mark.usefixtures("few_calls")
def test_dims_that_fail_are_recorded_and_the_sweep_goes_on(tmp_path):
    values = [{"from": 1100, "to": 1720}]
    summary = run_sweep(adaptive_suite(values), replaying(LONG[1]), tmp_path / "run")
    assert summary.failed > 0 and summary.points > 100
    failed = [s for s in read_samples(tmp_path / "run") if s.status == "failed"]
    told = {LONG[1].points.d.count(s.point.dim["N"]) for s in failed if s.reason.startswith("the")}
    assert told == {0}


def test_an_axis_of_which_nothing_can_be_prepared_ends_the_sweep(tmp_path):
    class Refusing(RecordedDevice):
        def session(self, slots, reuse_bytes=0):
            made = super().session(slots)
            made.failed = dict.fromkeys(range(len(slots)), "no such product")
            return made

    summary = run_sweep(adaptive_suite(), Refusing(lambda point: 1.0), tmp_path / "run")
    assert (summary.points, summary.blocks, summary.unfinished) == (0, 0, 0)
    assert summary.failed > 0


GEMV = [c for c in PUBLISHED.file.curves if c.fixed.get("M") == 1 and len(c.points.d) > 400]


def tier_edges(found: set[tuple[int, int]]) -> list[set[tuple[int, int]]]:
    """Edges of classes that overlap are one edge of the axis."""
    together: list[set[tuple[int, int]]] = []
    end = 0
    for before, after in sorted(found):
        if not together or before >= end:
            together.append(set())
            end = after
        end = min(end, after)
        together[-1].add((before, after))
    return together


def test_edges_of_data_that_refinement_was_not_made_for_are_found():
    """The published GEMV axes, K and N of 3800 to 4300, laid end to end: a thousand dims. Each
    of the five edges is found, not in each class that has it."""
    shift = 512  # keeps residues
    latency = dict(zip(GEMV[0].points.d, GEMV[0].points.median_us, strict=True))
    second = zip(GEMV[1].points.d, GEMV[1].points.median_us, strict=True)
    latency |= {d + shift: t for d, t in second}
    wanted = class_edges(latency, GEMV[0].floor)
    assert len(GEMV) == 2 and len(latency) == 1000 and len(tier_edges(wanted)) == 5
    for seed in range(5):
        chosen = measured_by_refinement(latency, 0.03, seed)
        found = wanted & class_edges({d: latency[d] for d in chosen}, GEMV[0].floor)
        assert len(chosen) <= 250
        assert all(edge & found for edge in tier_edges(wanted))
        assert len(found) >= 0.7 * len(wanted)


CLASSES = {
    "even": lambda r: r % 2 == 0,
    "odd": lambda r: r % 2 == 1,
    "fours": lambda r: r % 4 == 0,
    "eights": lambda r: r % 8 == 0,
    "not eights": lambda r: r % 8 != 0,
}


def staircase(draw: random.Random) -> dict[int, float]:
    """Classes at levels by their alignment; one to three steps that all take, up to two more
    that some take, of 6 to 50 % up or down, anywhere: they may undo each other."""
    length, first = draw.randrange(1000, 3000), draw.randrange(64, 4096)
    steps = [
        (
            draw.randrange(first + 16, first + length - 16),
            draw.uniform(0.06, 0.5) * draw.choice([1, 1, -1]),
            (lambda r: True) if number < 0 else draw.choice(list(CLASSES.values())),
        )
        for number in range(-draw.randint(1, 3), draw.randint(0, 2))
    ]
    latency = {}
    for d in range(first, first + length):
        residue = d % 16
        level = 1.0 if residue % 8 == 0 else 1.3 if residue % 4 == 0 else 1.6 + residue % 2
        for place, jump, takes in steps:
            if d >= place and takes(residue):
                level *= 1 + jump if jump > 0 else 1 / (1 - jump)
        latency[d] = 10.0 * level
    return latency


@pytest.mark.parametrize("seed", range(40))
def test_every_edge_of_a_staircase_is_found_with_a_quarter_of_the_points(seed):
    latency = staircase(random.Random(seed))
    chosen = measured_by_refinement(latency, 0.03, seed)
    assert len(chosen) <= len(latency) / 4
    assert class_edges(latency, 0.05) <= class_edges({d: latency[d] for d in chosen}, 0.05)


@pytest.mark.parametrize("seed", range(3))
def test_edges_on_a_ramp_are_found(seed):
    """Latency doubles over the axis, as of a product bound by its work, and jumps twice."""
    latency = {
        d: 10.0 * d / 1500 * (1.3 if d >= 1999 else 1) * (0.8 if d >= 2503 else 1)
        for d in range(1500, 3000)
    }
    chosen = measured_by_refinement(latency, 0.03, seed)
    assert len(chosen) <= len(latency) / 4
    wanted = class_edges(latency, 0.05)
    found = wanted & class_edges({d: latency[d] for d in chosen}, 0.05)
    for place in (1999, 2503):
        assert any(before < place <= after for before, after in found)
