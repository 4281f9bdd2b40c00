"""The judge: its bounds hold the truth as often as they say, and noise makes no dim safe."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gacprof.cliffmap.detect import penalty
from gacprof.cliffmap.judge import LEVEL, judge, verdict_of

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


@given(latencies, st.integers(0, 40))
@settings(max_examples=60)
def test_nothing_beyond_what_is_settled_is_safe(latency, settled):
    verdict = judge(latency, settled=settled).verdict
    assert "safe" not in verdict[settled:]


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
