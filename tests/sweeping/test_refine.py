"""Refinement finds the edges that the exhaustive sweep finds, at a quarter of the points."""

import random
from itertools import pairwise
from math import log, log1p, sqrt

import pytest
from recorded_device import RecordedDevice
from suites import over, suite_of

from gacprof.cliffmap import CliffMap
from gacprof.cliffmap.curves import Measured
from gacprof.cliffmap.detect import FAMILY, edges
from gacprof.core.errors import MeasurementError
from gacprof.stats.fit import FEWEST_BLOCKS
from gacprof.stats.judge import quantiles
from gacprof.sweeping import build_map_of, read_blocks
from gacprof.sweeping.refine import LARGEST_SHARE, Known, next_dims, residue_classes
from gacprof.sweeping.run import run_sweep

PUBLISHED = CliffMap.load("a100-published")
LONG = [c for c in PUBLISHED.file.curves if len(c.points.d) >= 900]
"""Figure 7's axes from 1024 to 2048: 928 and 979 dims could be read off the figure."""


def measured_by_refinement(latency: dict[int, float], floor: float = 0.03) -> list[int]:
    return refined(list(latency), lambda d: Measured(d, latency[d], 0.0), floor)


def refined(dims, seen, floor: float = 0.03) -> list[int]:
    """All dims that are asked for, of an axis where ``seen`` tells what each would give."""
    known: Known = {}
    while wanted := next_dims(sorted(dims), known, floor):
        assert not known.keys() & set(wanted)
        known = {**known, **{d: seen(d) for d in wanted}}
    return sorted(known)


def class_edges(latency: dict[int, float], floor: float) -> set[tuple[int, int]]:
    found = set()
    for d in residue_classes(latency):
        quantile = quantiles(FAMILY / 2 / max(1, len(d) - 1), None, 1)[0]
        error = log1p(floor) / quantile / sqrt(2)
        t = [latency[size] for size in d]
        found |= {(e.before, e.after) for e in edges(d, t, [error] * len(d))}
    return found


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


def found_of(latency: dict[int, float], chosen: list[int], floor: float) -> tuple[int, int, float]:
    """(tier edges, those found, the share of their classes in which they are)."""
    wanted = class_edges(latency, floor)
    found = wanted & class_edges({d: latency[d] for d in chosen}, floor)
    tiers = tier_edges(wanted)
    return len(tiers), sum(bool(edge & found) for edge in tiers), len(found) / len(wanted)


@pytest.mark.parametrize("curve", LONG, ids=lambda c: c.axis)
def test_every_published_tier_edge_is_found_with_a_quarter_of_the_points(curve):
    """Neighbours in a residue class of 16 between which the exhaustive data has an edge are both
    measured, so that the edge is found exactly where it is, in most classes that have it."""
    latency = curve.latencies
    chosen = measured_by_refinement(latency)
    tiers, found, share = found_of(latency, chosen, curve.floor)
    assert len(chosen) <= len(latency) / 4
    assert found == tiers >= 4 and share >= 0.6


def adaptive_suite(values=None, **timing):
    values = values or [{"from": 1024, "to": 2048}]
    timing = {"blocks": 9, "processes": 1, "replicates": 0.05} | timing
    return suite_of(over("N", values, {"M": 2048, "K": 128}, **ADAPTIVE), **timing)


ADAPTIVE = {"strategy": "adaptive", "dtype": "float16", "flags": {"layout": "nn"}}


AXIS = dict(list(zip(LONG[1].points.d, LONG[1].points.latency_us, strict=True))[100:750])
"""Dims enough for refinement, for tests that make a whole sweep of them."""


def replaying(curve):
    """The published curve as a device; dims that the figure does not tell fail."""
    at = curve.latencies

    def answer(point):
        if point.dim["N"] not in at:
            raise MeasurementError("the figure does not tell")
        return at[point.dim["N"]]

    return RecordedDevice(answer)


@pytest.fixture
def few_calls(monkeypatch):
    """A recording without noise needs no more calls of a dim than a fit does."""
    monkeypatch.setattr("gacprof.sweeping.curve.COARSE_BLOCKS", FEWEST_BLOCKS)


def called(folder):
    return {call.point.dim["N"] for block in read_blocks(folder) for call in block.calls}


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
    ratios = [t / AXIS[d] for d, t in zip(made.points.d, made.points.latency_us, strict=True)]
    assert len(calls) > 2500
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

    for blocks in (3, 5, 6):
        with pytest.raises(KeyboardInterrupt):
            run_sweep(
                suite, replaying(curve), tmp_path / "cut",
                resume=blocks > 3, progress=stop_after(blocks),
            )  # fmt: skip
    kept = read_blocks(tmp_path / "cut")
    assert len(kept) == 14
    run_sweep(suite, replaying(curve), tmp_path / "cut", resume=True)
    assert read_blocks(tmp_path / "cut")[: len(kept)] == kept
    chosen = called(tmp_path / "cut")
    assert len(chosen) <= len(latency) / 3
    tiers, found, _ = found_of(latency, sorted(chosen), curve.floor)
    assert found == tiers


def test_a_short_axis_is_measured_whole():
    assert measured_by_refinement(dict.fromkeys(range(64, 257), 1.0)) == list(range(64, 257))


def test_a_change_of_kernel_is_found_though_latency_does_not_tell():
    known = refined(
        range(1000, 2000),
        lambda d: Measured(d, 10.0, kernels=("early",) if d < 1500 else ("late",)),
    )
    for d in residue_classes(range(1000, 2000)):
        before, after = next((a, b) for a, b in pairwise(d) if a < 1500 <= b)
        assert {before, after} <= set(known)


def test_where_dims_begin_to_fail_is_located():
    known = refined(range(1, 1001), lambda d: None if d > 777 else Measured(d, 5.0))
    assert {777, 778} & set(known) and len(known) <= 250


def test_noise_within_the_intervals_is_no_difference():
    dims = list(range(1000, 2000))
    grid = next_dims(dims, {}, 0.03)

    def after(half_width):
        error = log(half_width) / 1.96
        known = {d: Measured(d, 10.0 * (1 + 0.05 * (d % 2)), error) for d in grid}
        moved = {grid[5]: Measured(grid[5], 11.5, error)}
        return next_dims(dims, known | moved, 0.03)

    assert after(1.2) == [] and after(1.001)


def test_at_most_a_third_of_an_axis_that_wanders_is_measured():
    draw = random.Random(0)
    latency = {d: draw.uniform(5.0, 50.0) for d in range(1000, 2500)}
    assert len(measured_by_refinement(latency)) <= len(latency) / LARGEST_SHARE


def test_a_noisy_device_does_not_make_refinement_measure_everything(tmp_path):
    draw = random.Random(1)
    noisy = RecordedDevice(lambda point: 10.0 * draw.gauss(1, 0.02))
    summary = run_sweep(adaptive_suite(most_blocks=40), noisy, tmp_path / "run")
    assert summary.points <= 1025 / 6


def test_an_axis_of_which_nothing_can_be_prepared_ends_the_sweep(tmp_path):
    class Refusing(RecordedDevice):
        def session(self, slots, reuse_bytes=0):
            made = super().session(slots)
            made.failed = dict.fromkeys(range(len(slots)), "no such product")
            return made

    summary = run_sweep(adaptive_suite(), Refusing(lambda point: 1.0), tmp_path / "run")
    assert (summary.points, summary.blocks, summary.unfinished) == (0, 0, 0)
    assert summary.failed > 0


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


def test_tier_edges_of_staircases_are_found_with_a_fifth_of_the_points():
    tiers = found = points = 0.0
    for seed in range(40):
        latency = staircase(random.Random(seed))
        chosen = measured_by_refinement(latency)
        of, hit, _ = found_of(latency, chosen, 0.05)
        tiers, found, points = tiers + of, found + hit, points + len(chosen) / len(latency)
    assert found >= 0.98 * tiers and points / 40 <= 0.2


def test_edges_on_a_ramp_are_found():
    """Latency doubles over the axis, as of a product bound by its work, and jumps twice."""
    first, second = 1999, 2503
    latency = {
        d: 10.0 * d / 1500 * (1.3 if d >= first else 1) * (0.8 if d >= second else 1)
        for d in range(1500, 3000)
    }
    chosen = measured_by_refinement(latency)
    assert len(chosen) <= len(latency) / LARGEST_SHARE
    found = class_edges(latency, 0.05) & class_edges({d: latency[d] for d in chosen}, 0.05)
    for place in (first, second):
        assert any(before < place <= after for before, after in found)
