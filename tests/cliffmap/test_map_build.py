"""From samples to a map: pooling, the noise floor, coverage, and planted structure recovered."""

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


def test_visits_are_pooled_and_the_median_has_its_interval():
    curve = only_curve(
        [sample(8, [1.0, 2.0, 3.0]), sample(8, [4.0, 5.0], visit=1), sample(16, [7.0] * 5)]
    )
    assert curve.points.d == [8, 16]
    assert curve.points.median_us == [3.0, 7.0]
    assert curve.points.count == [5, 5]
    assert (curve.points.low_us[0], curve.points.high_us[0]) == (1.0, 5.0)


def test_the_floor_is_what_95_percent_of_the_duplicates_stay_within():
    own = [sample(d, [100.0] * 3) for d in range(1, 41)]
    disguised = [sample(d, [100.0 + d / 10] * 3, duplicate=True, visit=9) for d in range(1, 41)]
    built = build_map(chain(own, disguised), DEVICE, name="aa")
    assert built.file.noise.pairs == 40 and built.file.noise.quantile == 0.95
    assert built.file.noise.floor == pytest.approx(0.038)
    assert built.curves[0].points.median_us[-1] == 100.0  # duplicates are not pooled in
    assert built.curves[0].tolerance == pytest.approx(0.038)


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
