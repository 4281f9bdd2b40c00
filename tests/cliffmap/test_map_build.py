"""From samples to a map: visits, noise floors, coverage, and planted structure recovered."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gacprof.cliffmap import CliffMap
from gacprof.cliffmap.build import build_map
from gacprof.errors import MapError
from gacprof.points import Environment, Point, Sample

DEVICE = Environment("recorded", "planted", "none", {"sm_count": 108}, {"torch": "2.13.0"})


def sample(d, timings, **options):
    point = Point.of("linear", {"M": 64, "N": 512, "K": d}, "float16", {"bias": False})
    return Sample(point, ("K",), tuple(timings), "recorded", **options)


def only_curve(samples, **options):
    (curve,) = build_map(samples, DEVICE, name="planted", **options).curves
    return curve


def test_the_least_disturbed_visit_stands_for_a_point_with_its_own_interval():
    curve = only_curve(
        [sample(8, [1.0, 2.0, 3.0]), sample(8, [4.0, 5.0], visit=1), sample(16, [7.0] * 5)]
    )
    assert curve.points.d == [8, 16]
    assert curve.points.median_us == [2.0, 7.0]
    assert curve.points.count == [3, 5]
    assert (curve.points.low_us[0], curve.points.high_us[0]) == (1.0, 3.0)


@given(slowed=st.sets(st.integers(8, 31), max_size=24), factor=st.floats(1.05, 20.0))
@settings(max_examples=40, deadline=None)
def test_other_work_during_one_of_two_passes_changes_nothing(slowed, factor):
    quiet = [sample(d, [10.0 + d] * 6, visit=v) for v in (0, 1) for d in range(8, 32)]
    disturbed = [
        sample(d, [(10.0 + d) * (factor if (d in slowed) == v else 1.0)] * 6, visit=v)
        for v in (0, 1)
        for d in range(8, 32)
    ]
    assert only_curve(disturbed) == only_curve(quiet)


def test_the_floor_is_what_95_percent_of_the_duplicates_stay_within():
    own = [sample(d, [100.0] * 3) for d in range(1, 41)]
    disguised = [sample(d, [100.0 + d / 10] * 3, duplicate=True, visit=9) for d in range(1, 41)]
    built = build_map(chain(own, disguised), DEVICE, name="aa")
    assert built.file.noise.pairs == 40 and built.file.noise.quantile == 0.95
    assert built.file.noise.floor == pytest.approx(0.038)
    assert built.curves[0].points.median_us[-1] == 100.0  # duplicates are not pooled in
    assert built.curves[0].tolerance == pytest.approx(0.038)


def test_both_sides_of_a_pair_are_the_least_of_as_many_visits():
    own = [sample(8, [100.0] * 3, visit=v) for v in (0, 1)] + [sample(16, [100.0] * 3)]
    disguised = [sample(8, [t] * 3, visit=v, duplicate=True) for v, t in ((0, 150.0), (1, 101.0))]
    assert build_map(own + disguised, DEVICE, name="aa").floor == pytest.approx(0.01)


def regime(m, latency, spread, pairs=16, visit=0):
    """A curve over K at some M: the pairs' disguised visits are up to ``spread`` slower."""
    for d in range(64, 128):
        point = Point.of("linear", {"M": m, "N": 512, "K": d}, "float16", {"bias": False})
        yield Sample(point, ("K",), (latency,) * 6, "recorded", visit)
        if d < 64 + pairs:
            slower = latency * (1 + spread * (d - 63) / pairs)
            yield Sample(point, ("K",), (slower,) * 6, "recorded", visit, duplicate=True)


def test_each_curve_is_held_to_the_noise_of_points_like_its_own():
    built = build_map(chain(regime(1, 7.0, 0.01), regime(512, 700.0, 0.4)), DEVICE, name="two")
    short, long = built.curve("linear", "K", M=1), built.curve("linear", "K", M=512)
    assert (built.floor_of(short), built.floor_of(long)) == (
        pytest.approx(0.01), pytest.approx(0.4),
    )  # fmt: skip
    assert built.floor == pytest.approx(0.4, rel=0.1)
    assert (short.noise.pairs, built.file.noise.pairs) == (16, 32)
    assert (short.tolerance, long.tolerance) == (0.02, pytest.approx(0.4))
    assert short.floor < 0.03 < 0.4 < long.floor


def test_a_curve_with_too_few_pairs_is_held_to_the_noise_of_the_map():
    built = build_map(
        chain(regime(1, 7.0, 0.01, pairs=11), regime(512, 700.0, 0.4)), DEVICE, name="two"
    )
    short = built.curve("linear", "K", M=1)
    assert short.noise is None and built.floor_of(short) == built.floor > 0.3
    assert short.tolerance == built.floor


def test_without_duplicates_there_is_no_floor_and_the_map_says_why(samples_of):
    built = build_map(samples_of([8, 16, 24], lambda d: 1.0), DEVICE, name="none")
    assert built.floor is None and "no duplicate" in built.file.noise.reason
    assert built.curves[0].tolerance == 0.02


def test_failed_and_throttled_points_are_in_the_coverage_with_their_reason():
    curve = only_curve(
        [
            sample(8, [1.0] * 3),
            sample(16, [1.0] * 3),
            sample(24, [], status="failed", reason="out of memory"),
            sample(32, [9.0] * 3, status="throttled", reason="thermal"),
            sample(16, [50.0] * 3, visit=1, status="throttled", reason="thermal"),
        ]
    )
    assert curve.coverage.failed == {24: "out of memory", 32: "thermal"}
    assert curve.points.median_us == [1.0, 1.0]
    assert (curve.coverage.first, curve.coverage.last, curve.coverage.measured) == (8, 32, 2)


def test_a_point_on_two_axes_is_on_both_curves(samples_of):
    over_k = samples_of([256, 512], lambda d: d / 10)
    over_n = samples_of([256, 512], lambda d: d / 10, axis="N")
    built = build_map(chain(over_k, over_n), DEVICE, name="cross")
    assert {c.axis: c.fixed for c in built.curves} == {
        "K": {"M": 64, "N": 512},
        "N": {"K": 512, "M": 64},
    }


def test_a_point_alone_on_its_axis_is_kept_for_look_ups():
    alone = Point.of("linear", {"M": 1, "N": 4096, "K": 4096}, "float16", {"bias": False})
    other = Point.of("linear", {"M": 1, "N": 64, "K": 64}, "float16", {"bias": False})
    built = build_map(
        [Sample(alone, ("N",), (35.0,) * 5, "recorded"), Sample(other, (), (5.0,), "recorded")],
        DEVICE,
        name="lone",
    )
    assert built.curves == [] and len(built.file.lone) == 2
    found = built.latency("linear", {"M": 1, "N": 4096, "K": 4096}, "float16")
    assert (found.latency_us, found.kind) == (35.0, "exact")


NATIVE = "ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_32x6_nn"
OTHER_TILE = "ampere_fp16_s16816gemm_fp16_64x64_sliced1x2_ldg8_f2f_stages_64x5_nn"
ALIGN1 = "cutlass_75_tensorop_f16_s1688gemm_f16_128x128_tn_align1"


def kernels_from_96(samples_of, kernel, jump=1.0):
    return only_curve(
        samples_of(
            range(64, 128),
            lambda d: 10.0 * (1.0 if d < 96 else jump),
            kernel=lambda d: NATIVE if d < 96 else kernel,
        )
    )


def test_a_change_of_mechanism_is_a_tier_edge_even_where_latency_hides_it(samples_of):
    curve = kernels_from_96(samples_of, ALIGN1)
    assert curve.cliffs == []
    assert [(t.first, t.last) for t in curve.tiers] == [(64, 95), (96, 127)]
    assert "align1" in curve.tiers[1].mechanism and "align8" in curve.tiers[0].mechanism


def test_another_tile_of_the_same_mechanism_is_the_same_tier(samples_of):
    curve = kernels_from_96(samples_of, OTHER_TILE)
    assert len(curve.tiers) == 1 and len(curve.mechanisms) == 1
    assert [curve.kernels[i] for i in (curve.points.kernels[0], curve.points.kernels[-1])] == [
        [NATIVE],
        [OTHER_TILE],
    ]


def test_the_cause_of_a_cliff_is_what_its_kernels_tell(samples_of):
    def cause(kernel):
        (cliff,) = kernels_from_96(samples_of, kernel, jump=1.5).cliffs
        assert (cliff.before, cliff.after) == (95, 96)
        return cliff.cause

    assert cause(NATIVE) == "same kernel"
    assert cause(OTHER_TILE).startswith("another kernel of native sm80")
    assert " → " in cause(ALIGN1) and "align1" in cause(ALIGN1)


def test_another_timer_is_left_out_and_said_so(samples_of):
    events = [replace(s, timer="events") for s in samples_of([8, 16, 24], lambda d: 2.0)]
    built = build_map(chain(samples_of([8], lambda d: 9.0), events), DEVICE, name="timers")
    assert built.curves[0].timer == "events" and built.curves[0].points.median_us == [2.0] * 3
    assert any("recorded" in note for note in built.file.provenance.notes)


def test_nothing_measured_is_refused_with_the_commonest_reason():
    with pytest.raises(MapError, match="out of memory"):
        build_map([sample(8, [], status="failed", reason="out of memory")], DEVICE, name="empty")
    with pytest.raises(MapError, match="no sample was measured"):
        build_map([], DEVICE, name="empty")


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_a_timing_that_is_no_positive_number_is_refused_naming_the_point(bad):
    with pytest.raises(MapError, match=r"K=16 .* not a positive number"):
        build_map([sample(8, [1.0]), sample(16, [1.0, bad])], DEVICE, name="bad")


def test_the_map_keeps_device_stack_and_suite(samples_of):
    built = build_map(
        samples_of([8, 16], lambda d: 1.0), DEVICE, name="p", suite="quick", suite_hash="abc",
        created="2026-01-02T03:04:05Z",
    )  # fmt: skip
    p = built.file.provenance
    assert (p.kind, p.suite, p.suite_hash, p.stack["torch"]) == (
        "measured",
        "quick",
        "abc",
        "2.13.0",
    )
    assert built.environment == DEVICE


@given(
    modulus=st.sampled_from([4, 8, 12, 16]),
    slow=st.floats(1.2, 2.5),
    cliff=st.integers(90, 160),
    jump=st.floats(1.25, 2.0),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=30, deadline=None)
def test_a_planted_device_is_recovered(modulus, slow, cliff, jump, seed):
    """Misaligned dims are slower, and from one dim on everything is: both are found, no more."""
    rng = np.random.default_rng(seed)

    def timings(d):
        level = (1.0 if d % modulus == 0 else slow) * (jump if d >= cliff else 1.0) * 20
        return [float(t) for t in level * rng.normal(1, 0.003, 12)]

    dims = range(64, 192)
    visits = [sample(d, timings(d), visit=v) for v in (0, 1) for d in dims]
    disguised = [sample(d, timings(d), duplicate=True, visit=2) for d in dims if d % 5 == 0]
    curve = only_curve(visits + disguised)
    assert curve.period.modulus == modulus
    assert curve.period.classes[0].remainders == [0]
    last = max(d for d in dims if d < cliff and d % modulus == 0)
    aligned = [(c.before, c.after) for c in curve.cliffs if c.remainders == [0]]
    assert aligned == [(last, last + modulus)]
    if slow > 1.1 * jump:  # else padding a misaligned dim beyond the cliff gains nothing
        assert all(d % modulus == 0 for d in curve.safe)
        assert curve.frontier == [last, max(d for d in dims if d % modulus == 0)]


def test_a_full_map_stays_small_and_comes_back_the_same(samples_of, tmp_path):
    many = chain.from_iterable(
        samples_of(range(1, 1500), lambda d: 10.0 + d % 8, axis=axis, kernel=lambda d: NATIVE)
        for axis in ("M", "N", "K")
    )
    built = build_map(many, DEVICE, name="large")
    built.save(tmp_path / "large.json")
    assert (tmp_path / "large.json").stat().st_size < 300_000
    assert CliffMap.load(tmp_path / "large.json").file == built.file


def test_pure_noise_gives_no_cliffs_through_the_whole_chain():
    rng = np.random.default_rng(7)

    def timings():
        return [float(t) for t in 20 * rng.lognormal(0, 0.02, 12)]

    dims = range(1000, 1800)
    visits = [sample(d, timings(), visit=v) for v in (0, 1) for d in dims]
    disguised = [sample(d, timings(), duplicate=True, visit=2) for d in dims if d % 20 == 0]
    curve = only_curve(visits + disguised)
    assert curve.cliffs == [] and curve.period is None and len(curve.tiers) == 1


def shared_machine(rng, dims, share, factor):
    """Two shuffled passes, one point in five in disguise too; during the last share of the sweep
    every second visit is slowed as a whole, as other work on the machine does."""
    order = [(v, d, a) for v in (0, 1) for d in dims for a in (False, True) if not a or d % 5 == 0]
    order = sorted(order, key=lambda visit: (visit[0], rng.random()))
    for place, (v, d, disguised) in enumerate(order):
        slow = place >= (1 - share) * len(order) and rng.random() < 0.5
        timings = 20 * (factor if slow else 1.0) * rng.normal(1, 0.004, 12)
        yield sample(d, [float(t) for t in timings], visit=v, duplicate=disguised)


def test_other_work_for_a_part_of_the_sweep_feigns_no_more_than_one_cliff_in_a_hundred_edges():
    dims, found, cases = range(64, 192), 0, 0
    for seed, share in enumerate(np.linspace(0.0, 1.0, 21)):
        for factor in (1.1, 1.4, 2.5):
            rng = np.random.default_rng(seed)
            found += len(only_curve(shared_machine(rng, dims, share, factor)).cliffs)
            cases += 1
    assert found <= 0.01 * cases * (len(dims) - 1)


def test_a_point_measured_in_disguise_only_is_measured():
    """A budget can end a sweep after a point's duplicate and before its own visit."""
    seen = sample(107, [9.0] * 5, duplicate=True, kernels=("ampere_h1688gemm_128x64",))
    curve = only_curve([sample(96, [8.0] * 5), sample(104, [8.5] * 5), seen])
    assert curve.points.d == [96, 104, 107] and curve.points.median_us[-1] == 9.0
    assert curve.coverage.failed == {} and curve.kernels == [["ampere_h1688gemm_128x64"]]
