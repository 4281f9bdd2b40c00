"""From blocks to a map: fits, the A/A floor, coverage, and planted structure recovered."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planted_blocks import linear, notes, numbered, planted

from gacprof.cliffmap import CliffMap
from gacprof.cliffmap.build import build_map
from gacprof.core.errors import MapError
from gacprof.core.points import Block, Environment, Point, PointNote
from gacprof.sweeping.for_checkpoint import sizes_near

DEVICE = Environment("recorded", "planted", "none", {"sm_count": 108}, {"torch": "2.13.0"})


def map_of(blocks, **options) -> CliffMap:
    return build_map(blocks, DEVICE, **({"name": "planted"} | options))


def only_curve(blocks, **options):
    (curve,) = map_of(blocks, **options).curves
    return curve


def over_k(dims, latency, **options) -> list[Block]:
    return planted(linear("K", dims), "K", latency, **options)


def changed(blocks, change) -> list[Block]:
    """Each call as ``change(call, its block)`` has it."""
    return [replace(b, calls=tuple(change(c, b) for c in b.calls)) for b in blocks]


def test_of_a_slots_calls_in_a_block_the_undisturbed_one_counts():
    blocks = []
    for block in over_k([8, 16, 24], lambda d: 10.0):
        again = [c for c in block.calls if c.point.dim["K"] == 16]
        disturbed_calls = [replace(c, us=80.0, disturbed=True) for c in again]
        rest = [c for c in block.calls if c.point.dim["K"] != 16]
        blocks.append(replace(block, calls=(*disturbed_calls, *rest, *again)))
    assert only_curve(blocks).points.latency_us == [10.0, 10.0, 10.0]


def test_the_floor_is_what_replicates_differ_by_across_processes():
    dims = range(64, 192)
    quiet, noisy = (
        map_of(over_k(dims, lambda d: 20.0, count=24, spread=s, replicates=dims))
        for s in (0.002, 0.02)
    )
    assert quiet.file.noise.pairs == 128 and quiet.file.noise.processes == 2
    assert 5 < noisy.floor / quiet.floor < 20
    assert noisy.floor < 2 * 0.02 * 2**0.5 * 1.96 / 24**0.5 * 1.6


def test_replicates_that_differ_by_more_than_the_errors_make_all_errors_larger():
    dims = range(64, 128)
    blocks = over_k(dims, lambda d: 20.0, count=24, spread=0.002, replicates=dims)
    moved = changed(
        blocks,
        lambda c, _: replace(c, us=c.us * (1 + 0.02 * (c.replicate and c.point.dim["K"] % 2))),
    )
    honest, larger = map_of(blocks).file.noise, map_of(moved).file.noise
    assert honest.inflation < 1.6 and larger.inflation > 5


def test_without_replicates_there_is_no_floor_and_the_map_says_why():
    built = map_of(over_k([8, 16, 24], lambda d: 1.0))
    assert built.floor is None and "no hidden A/A replicate" in built.file.noise.reason
    assert built.curves[0].tolerance == 0.02


def test_the_tolerance_is_the_suites_and_noise_never_raises_it():
    blocks = over_k(range(64, 96), lambda d: 20.0, spread=0.05, replicates=range(64, 96))
    assert {c.tolerance for c in map_of(blocks, tolerance=0.01).curves} == {0.01}


@pytest.mark.parametrize("count", [1, 3])
def test_fewer_than_four_blocks_decide_nothing(count):
    blocks = over_k([8, 16, 24], lambda d: 100.0 if d == 8 else 10.0, count=count, replicates=[8])
    curve = only_curve(blocks)
    assert (curve.safe, curve.misaligned, curve.undecided) == ([], [], [8, 16, 24])
    assert curve.cliffs == [] and curve.points.low_us == [None] * 3


def test_a_contended_curve_is_undecided_however_flat_it_looks():
    """Beside another program every call waits for the scheduler: all dims take 8 ms alike."""
    flat = over_k([8, 16, 24], lambda d: 8000.0)
    contended = changed(flat, lambda c, _: replace(c, disturbed=True))
    assert only_curve(flat).safe == [8, 16, 24]
    built = map_of(contended)
    assert built.curves[0].undecided == [8, 16, 24]
    (check,) = [c for c in built.file.checks if c.name == "contention"]
    assert not check.passed


def test_dims_that_share_no_block_are_not_compared():
    """As of two sweeps of one curve: between them the machine may have slowed."""
    dims = [8, 16, 24, 32]
    first = over_k(dims[:2], lambda d: 10.0, count=8, level=0.1)
    second = over_k(dims[2:], lambda d: 10.0, count=8, level=0.1, seed=1)
    apart = only_curve(numbered(first, second))
    assert apart.undecided == [24, 32] and apart.cliffs == []
    tied = numbered(first, second, over_k([16, 24], lambda d: 10.0, count=8, level=0.1))
    assert only_curve(tied).safe == dims


def test_failed_points_are_in_the_coverage_with_their_reason():
    points = linear("K", [8, 16, 24])
    curve = only_curve(
        planted(points[:2], "K", lambda d: 1.0),
        point_notes={points[2]: PointNote(points[2], failed="out of memory")},
    )
    assert curve.coverage.failed == {24: "out of memory"}
    assert (curve.coverage.first, curve.coverage.last, curve.coverage.measured) == (8, 24, 2)


def test_throttled_blocks_are_left_out_and_said_so():
    good = over_k([8, 16], lambda d: 1.0)
    hot = [replace(b, throttled="thermal") for b in over_k([8, 16], lambda d: 50.0, count=2)]
    built = map_of(numbered(good, hot))
    assert built.curves[0].points.latency_us == [1.0, 1.0]
    assert any("2 blocks ran throttled" in note for note in built.file.provenance.notes)


def test_a_curve_that_always_ran_throttled_is_kept_and_says_so():
    """A light decode beside a prefill at the power limit: the second is no less measured."""
    light = over_k([8, 16, 24], lambda d: 1.0)
    heavy = [
        replace(b, throttled="power")
        for b in planted(linear("N", [256, 512]), "N", lambda d: float(d), count=8)
    ]
    built = map_of(numbered(light, heavy))
    throttled = {curve.axis: curve.throttled for curve in built.curves}
    assert throttled == {"K": "", "N": "power"}
    (note,) = built.file.provenance.notes
    assert "1 curves are of a throttled device" in note


def test_a_curve_of_another_timer_only_is_named_as_unmeasured():
    over_n = planted(linear("N", [256, 512]), "N", lambda d: 1.0, count=2, timer="events")
    built = map_of(numbered(over_k([8, 16, 24], lambda d: 2.0, count=6), over_n))
    assert [curve.axis for curve in built.curves] == ["K"]
    (name,) = built.file.unmeasured
    assert name.startswith("linear N K=512 M=64")


@given(
    step=st.sampled_from([8, 16, 24, 32, 48]),
    slow=st.floats(1.02, 1.8),
    monotone=st.booleans(),
    sizes=st.lists(st.integers(20, 900), min_size=1, max_size=3),
)
@settings(max_examples=20, deadline=None)
def test_any_staircase_makes_a_map_however_it_is_swept(step, slow, monotone, sizes):
    """Whole tiles or alignment, of any step, around any sizes, as ``sweep --for`` visits them. No
    size is called safe that a measured larger one undercuts."""

    def latency(d):
        return 50.0 + 5 * -(-d // step) if monotone else (50.0 + d) * (slow if d % step else 1.0)

    dims = sorted({near for size in sizes for near in sizes_near(size, 0.25)})
    curve = only_curve(over_k(dims, latency, count=4))
    for d in curve.safe:
        assert latency(d) <= 1.0201 * min(latency(larger) for larger in dims if larger >= d)


def test_a_point_alone_on_its_axis_is_kept_for_look_ups():
    alone = Point.of("linear", {"M": 1, "N": 4096, "K": 4096}, "float16", {"bias": False})
    built = map_of(planted([alone], "N", lambda d: 35.0))
    assert built.curves == [] and len(built.file.isolated) == 1
    found = built.latency("linear", {"M": 1, "N": 4096, "K": 4096}, "float16")
    assert (found.latency_us, found.kind) == (35.0, "exact")


NATIVE = "ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_32x6_nn"
OTHER_TILE = "ampere_fp16_s16816gemm_fp16_64x64_sliced1x2_ldg8_f2f_stages_64x5_nn"
ALIGN1 = "cutlass_75_tensorop_f16_s1688gemm_f16_128x128_tn_align1"


def kernels_from_96(kernel, jump=1.0):
    points = linear("K", range(64, 128))
    named = notes(points, lambda p: NATIVE if p.dim["K"] < 96 else kernel)
    blocks = planted(points, "K", lambda d: 10.0 * (1.0 if d < 96 else jump))
    return only_curve(blocks, point_notes=named)


def test_a_change_of_mechanism_is_a_tier_edge_even_where_latency_hides_it():
    curve = kernels_from_96(ALIGN1)
    assert curve.cliffs == []
    assert [(t.first, t.last) for t in curve.tiers] == [(64, 95), (96, 127)]
    assert "align1" in curve.tiers[1].mechanism and "align8" in curve.tiers[0].mechanism


def test_another_tile_of_the_same_mechanism_is_the_same_tier():
    curve = kernels_from_96(OTHER_TILE)
    assert len(curve.tiers) == 1 and len(curve.mechanisms) == 1
    first, last = curve.points.kernels[0], curve.points.kernels[-1]
    assert (curve.kernels[first], curve.kernels[last]) == ([NATIVE], [OTHER_TILE])


def test_the_cause_of_a_cliff_is_what_its_kernels_tell():
    def cause(kernel):
        (cliff,) = kernels_from_96(kernel, jump=1.5).cliffs
        assert (cliff.before, cliff.after) == (95, 96)
        return cliff.cause

    assert cause(NATIVE) == "same kernel"
    assert cause(OTHER_TILE).startswith("another kernel of native sm80")
    assert " → " in cause(ALIGN1) and "align1" in cause(ALIGN1)


def test_another_timer_is_left_out_and_said_so():
    events = over_k([8, 16, 24], lambda d: 2.0, timer="events")
    built = map_of(numbered(over_k([8], lambda d: 9.0, count=2), events))
    assert built.curves[0].timer == "events" and built.curves[0].points.latency_us == [2.0] * 3
    assert any("'recorded'" in note for note in built.file.provenance.notes)


def test_nothing_measured_is_refused_with_the_commonest_reason():
    (point,) = linear("K", [8])
    with pytest.raises(MapError, match="out of memory"):
        map_of([], point_notes={point: PointNote(point, failed="out of memory")})
    with pytest.raises(MapError, match="no sample was measured"):
        map_of([])


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_that_is_no_positive_number_is_refused_naming_the_point(bad):
    with pytest.raises(MapError, match=r"K=16 .* not a positive number"):
        map_of(over_k([8, 16], lambda d: bad if d == 16 else 1.0))


@given(
    modulus=st.sampled_from([4, 8, 16]),
    slow=st.floats(1.2, 2.5),
    cliff=st.integers(90, 160),
    jump=st.floats(1.25, 2.0),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=8, deadline=None)
def test_a_planted_device_is_recovered(modulus, slow, cliff, jump, seed):
    """Misaligned dims are slower, and from one dim on everything is: both are found, no more."""

    def latency(d):
        return 20 * (1.0 if d % modulus == 0 else slow) * (jump if d >= cliff else 1.0)

    dims = range(64, 193)
    curve = only_curve(
        over_k(dims, latency, count=16, spread=0.004, level=0.1, seed=seed, replicates=dims[::4])
    )
    assert curve.period.modulus == modulus
    assert curve.period.classes[0].remainders == [0]
    last = max(d for d in dims if d < cliff and d % modulus == 0)
    aligned = [(c.before, c.after) for c in curve.cliffs if c.remainders == [0]]
    assert aligned == [(last, last + modulus)]
    if slow > 1.1 * jump:  # else padding a misaligned dim beyond the cliff gains nothing
        assert all(d % modulus == 0 for d in curve.safe)
        assert curve.frontier == [last, max(d for d in dims if d % modulus == 0)]


def test_a_predecessor_that_slows_the_next_call_is_told():
    """The test for carry-over finds a planted one, and none where there is none."""

    def check(blocks):
        (found,) = [c for c in map_of(blocks).file.checks if c.name == "carry-over"]
        return found

    blocks = over_k(range(64, 128), lambda d: 10.0 * (1 + (d % 8 > 3)), count=24, spread=0.003)
    carried = []
    for block in blocks:
        before = [1.0, *(1.0 + 0.05 * (c.us > 15) for c in block.calls[:-1])]
        slowed = (replace(c, us=c.us * f) for c, f in zip(block.calls, before, strict=True))
        carried.append(replace(block, calls=tuple(slowed)))
    assert check(blocks).passed
    assert not check(carried).passed and check(carried).effect == pytest.approx(0.05, rel=0.4)


def test_a_machine_that_slows_by_a_third_in_the_middle_is_told():
    blocks = over_k(range(64, 80), lambda d: 10.0, count=12)
    slowed = changed(blocks, lambda c, b: replace(c, us=c.us * (1.4 if b.number > 5 else 1)))
    message = {c.name: c for c in map_of(slowed).file.checks}["drift"]
    assert not message.passed and message.effect == pytest.approx(0.4)
    passed = {c.name: c.passed for c in map_of(blocks).file.checks}
    assert passed["drift"] and passed["contention"]
    draw = random.Random(0)
    held_up = changed(blocks, lambda c, b: replace(c, us=c.us * (5 if draw.random() < 0.2 else 1)))
    message = {c.name: c for c in map_of(held_up).file.checks}["contention"]
    assert not message.passed and "took over 3 times as long" in message.message
