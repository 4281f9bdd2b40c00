"""The judge: its bounds hold the truth as often as they say, and noise makes no dim safe."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gacprof.cliffmap.detect import penalty
from gacprof.cliffmap.judge import LEVEL, judge, settled_dims, settled_of_sum, verdict_of
from gacprof.cliffmap.schema import Period, ResidueClass

latencies = st.lists(st.floats(1.0, 1e5), min_size=1, max_size=40)
errors = st.floats(0.0, 0.3)


def test_safe_misaligned_and_undecided():
    """128 takes 100 µs: 127 takes a third more, 126 between 1 and 3 % more."""
    judged = judge([102.0, 133.0, 100.0], [0.002, 0.002, 0.002])
    assert judged.verdict == ("undecided", "misaligned", "safe")
    assert judge([102.0, 133.0, 100.0], [0.0001] * 3, tolerance=0.03).verdict[0] == "safe"


@given(latencies, st.data())
@settings(max_examples=60)
def test_without_errors_the_bounds_are_the_penalties(latency, data):
    judged = judge(latency)
    assert judged.penalty == pytest.approx(penalty(latency))
    assert judged.low == pytest.approx(judged.penalty) == judged.high
    assert "undecided" not in judged.verdict


@given(latencies, st.data())
@settings(max_examples=60)
def test_bounds_hold_the_estimate_and_widen_with_the_error(latency, data):
    error = data.draw(st.lists(errors, min_size=len(latency), max_size=len(latency)))
    near, far = judge(latency, error), judge(latency, [2 * e + 0.01 for e in error])
    for judged in (near, far):
        assert np.all(judged.low <= judged.penalty) and np.all(judged.penalty <= judged.high)
    assert np.all(far.low <= near.low) and np.all(far.high >= near.high)


@given(latencies, st.data())
@settings(max_examples=60)
def test_more_noise_never_makes_a_dim_safe_or_misaligned(latency, data):
    error = data.draw(st.lists(errors, min_size=len(latency), max_size=len(latency)))
    noisier = [e + data.draw(errors) for e in error]
    before, after = judge(latency, error).verdict, judge(latency, noisier).verdict
    assert all(b in (a, "undecided") for a, b in zip(before, after, strict=True))


@given(latencies, st.data())
@settings(max_examples=60)
def test_nothing_unsettled_is_safe(latency, data):
    settled = data.draw(st.lists(st.booleans(), min_size=len(latency), max_size=len(latency)))
    verdict = judge(latency, settled=settled).verdict
    assert all(v != "safe" for v, yes in zip(verdict, settled, strict=True) if not yes)


def stairs(d: int) -> float:
    """µs of a device that works in whole tiles of 16."""
    return 50.0 + 5.0 * -(-d // 16)


@pytest.mark.parametrize(("last", "settled"), [(159, 159), (160, 160), (162, 160), (176, 176)])
def test_a_curve_that_ends_within_a_step_settles_what_lies_below_the_step(last, settled):
    dims = list(range(100, last + 1))
    yes = settled_dims(dims, [stairs(d) for d in dims], None)
    assert [d for d, good in zip(dims, yes, strict=True) if good] == list(range(100, settled + 1))


def test_a_dim_before_a_gap_has_nothing_to_be_padded_to():
    """252 costs as much as 256 would, or a fifth more: nobody measured it."""
    dims = [*range(224, 253), 384, 392, 400]
    slow = [1.2 if d % 8 else 1.0 for d in dims]
    latency = [d * factor for d, factor in zip(dims, slow, strict=True)]
    yes = dict(zip(dims, settled_dims(dims, latency, None), strict=True))
    assert [d for d, good in yes.items() if not good] == [249, 250, 251, 252]
    period = Period(
        modulus=8,
        classes=[ResidueClass(remainders=[0], ratio=1.0),
                 ResidueClass(remainders=[1, 2, 3, 4, 5, 6, 7], ratio=1.2)],
        explained=1.0,
    )  # fmt: skip
    assert settled_dims(dims, latency, period) == list(yes.values())


def test_dims_that_are_all_slow_alike_settle_nothing():
    """On a device that wants multiples of 32, where 160 was not measured: 192 would be faster."""
    dims = [96, 128, 148, 152, 161, 168, 171, 176]
    latency = [(100 + d / 10) * (1.4 if d % 32 else 1.0) for d in dims]
    assert settled_dims(dims, latency, None) == [True, True] + [False] * 6


def test_a_dim_by_itself_is_never_settled():
    """On a device that wants multiples of 8, 100 costs 40 % more than 104 would."""
    assert settled_dims([64, 100, 800], [2.3, 3.4, 20.0], None) == [False, False, False]
    assert settled_dims([128, 256, 512], [100.0, 200.0, 400.0], None) == [False, False, False]


def test_a_small_noisy_share_leaves_no_dim_of_a_sum_open():
    """A rank on an AMD EPYC in float32, as measured: a decode whose noise hides what follows from
    110 on is a tenth of a prefill that settles every dim."""
    dims = [105, 106, 107, 108, 109, 110, 111, 112, 113, 114, 115, 116, 120, 124, 128, 136, 144]
    prefill = [
        507, 514, 517, 525, 525, 516, 532, 539, 539, 545, 550, 549, 579, 582, 611, 641, 681,
    ]  # fmt: skip
    decode = [
        42.2, 44.9, 48.8, 48.7, 44.1, 46.9, 51.2, 50.8, 47.6, 50.9, 49.1, 53.9, 52.1, 59.1,
        67.8, 71.3, 76.3,
    ]  # fmt: skip
    alone = [settled_dims(dims, us, None) for us in (prefill, decode)]
    together = [a + b for a, b in zip(prefill, decode, strict=True)]
    assert all(alone[0]) and not any(alone[1][5:])
    assert all(settled_of_sum(dims, together, [(alone[0], True), (alone[1], False)])[:-3])
    # What is known of a curve by its period or by rules is not overruled, nor is a single curve.
    known = settled_of_sum(dims, together, [(alone[0], True), (alone[1], True)])
    assert known == alone[1] == settled_of_sum(dims, decode, [(alone[1], False)])


def test_a_dim_of_unknown_error_is_undecided():
    assert judge([100.0, 100.0], [0.001, float("inf")]).verdict == ("undecided", "undecided")
    assert judge([100.0], [float("inf")]).verdict == ("undecided",)


@pytest.mark.parametrize("plateau", [True, False], ids=["plateau", "staircase"])
def test_the_bounds_hold_the_truth_at_the_level_claimed(plateau):
    """Measured again and again with known errors: each bound fails as rarely as it says. A
    plateau is the hardest case: the fastest-looking of many equal dims looks too fast."""
    draw = np.random.default_rng(1)
    dims = np.arange(96, 160)
    true = np.full(len(dims), 100.0) if plateau else 100 + 40.0 * (dims % 8 != 0) + dims / 10
    error = np.where(dims % 3, 0.01, 0.03)
    wanted, times = np.array(penalty(true.tolist())), 500
    below = above = 0.0
    for _ in range(times):
        judged = judge(true * np.exp(draw.normal(0, error)), error)
        below += np.mean(judged.low > wanted + 1e-9)
        above += np.mean(judged.high < wanted - 1e-9)
    chance = 1.3 * LEVEL  # of ten thousands of judgements
    assert below / times <= chance and above / times <= chance


def test_an_interval_that_ends_at_the_tolerance_is_safe():
    assert verdict_of(0.0, 0.02, 0.02) == "safe"
    assert verdict_of(0.02, 0.05, 0.02) == "undecided"
    assert verdict_of(0.0201, 0.05, 0.02) == "misaligned"
