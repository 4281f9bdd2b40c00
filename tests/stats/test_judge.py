"""The judge: its bounds hold the truth as often as they say, and noise makes no dim safe."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gacprof.cliffmap.detect import penalty
from gacprof.stats.findings import Period, ResidueClass
from gacprof.stats.judge import VERDICT_LEVEL, comparable_dims, comparable_sums, judge, verdict_of

latencies = st.lists(st.floats(1.0, 1e5), min_size=1, max_size=40)
errors = st.floats(0.0, 0.3)


def test_safe_misaligned_and_undecided():
    """128 takes 100 µs: 127 takes a third more, 126 between 1 and 3 % more."""
    judged = judge([102.0, 133.0, 100.0], [0.002, 0.002, 0.002])
    assert judged.verdict == ("undecided", "misaligned", "safe")
    assert judge([102.0, 133.0, 100.0], [0.0001] * 3, tolerance=0.03).verdict[0] == "safe"


@given(latencies, st.data())
def test_without_errors_the_bounds_are_the_penalties(latency, data):
    judged = judge(latency)
    assert judged.penalty == pytest.approx(penalty(latency))
    assert judged.low == pytest.approx(judged.penalty) == judged.high
    assert "undecided" not in judged.verdict


@given(latencies, st.data())
def test_noise_widens_bounds_and_makes_no_dim_safe_or_misaligned(latency, data):
    error = data.draw(st.lists(errors, min_size=len(latency), max_size=len(latency)))
    near, far = judge(latency, error), judge(latency, [e + data.draw(errors) for e in error])
    for judged in (near, far):
        assert np.all(judged.low <= judged.penalty) and np.all(judged.penalty <= judged.high)
    assert np.all(far.low <= near.low) and np.all(far.high >= near.high)
    assert all(b in (a, "undecided") for a, b in zip(near.verdict, far.verdict, strict=True))


@given(latencies, st.data())
def test_what_is_not_comparable_is_never_safe(latency, data):
    comparable = data.draw(st.lists(st.booleans(), min_size=len(latency), max_size=len(latency)))
    verdict = judge(latency, comparable=comparable).verdict
    assert all(v != "safe" for v, yes in zip(verdict, comparable, strict=True) if not yes)


def test_dims_are_comparable_up_to_the_last_multiple_of_32():
    dims = list(range(100, 177))
    assert comparable_dims(dims) == [d <= 160 for d in dims]


def test_a_dim_before_a_gap_has_nothing_to_be_padded_to():
    """252 costs as much as 256 would, or a fifth more: nobody measured it."""
    dims = [*range(224, 253), 384, 392, 400, 416]
    comparable = dict(zip(dims, comparable_dims(dims), strict=True))
    assert [d for d, yes in comparable.items() if not yes] == list(range(225, 253))
    held = [*range(160, 193), 200]
    assert not comparable_dims(held)[-1]


def test_where_a_period_is_known_the_next_dim_of_its_best_class_was_measured():
    period = Period(
        modulus=64,
        classes=[ResidueClass(remainders=[0], ratio=1.0),
                 ResidueClass(remainders=list(range(1, 64)), ratio=1.2)],
        explained=1.0,
    )  # fmt: skip
    dims = list(range(100, 161))
    assert comparable_dims(dims) == [True] * 61
    assert comparable_dims(dims, period) == [d <= 128 for d in dims]


def test_a_dim_by_itself_is_compared_with_none():
    """On a device that wants multiples of 8, 100 costs 40 % more than 104 would."""
    assert comparable_dims([64, 100, 800]) == [False, False, False]
    assert comparable_dims([128, 256, 512]) == [False, False, False]


@given(st.sets(st.integers(1, 400), min_size=1), st.sampled_from([8, 16, 32]))
def test_whatever_was_measured_no_aligned_size_that_is_faster_is_overlooked(dims, step):
    """A device that wants multiples of ``step``: what is called safe without noise is no slower
    than any larger size would be, measured or not, beyond the tolerance."""
    dims = sorted(dims)

    def latency(d: int) -> float:
        return (1000 + d) * (1.0 if d % step == 0 else 1.3)

    verdict = judge([latency(d) for d in dims], comparable=comparable_dims(dims)).verdict
    for d, v in zip(dims, verdict, strict=True):
        if v == "safe" and d >= 2 * step:
            assert latency(d) <= 1.02 * min(latency(larger) for larger in range(d, d + 65))


def test_curves_that_know_no_period_leave_it_to_the_sizes_that_all_share():
    dims = list(range(100, 130))
    shared = comparable_dims(dims)
    assert comparable_sums(dims, [([False] * 30, False), ([True] * 30, False)]) == shared
    own = [d < 110 for d in dims]
    assert comparable_sums(dims, [(own, True), ([True] * 30, False)]) == own


def test_a_dim_of_unknown_error_is_undecided():
    assert judge([100.0, 100.0], [0.001, float("inf")]).verdict == ("safe", "undecided")
    assert judge([100.0], [float("inf")]).verdict == ("undecided",)


def test_one_thin_dim_does_not_hide_the_others():
    """Its neighbours are judged as if it had not been measured."""
    known, thin = [0.001, 0.001, 0.001], [0.001, float("inf"), 0.001, 0.001]
    assert judge([133.0, 133.0, 100.0], known).verdict == ("misaligned", "misaligned", "safe")
    assert judge([133.0, 90.0, 133.0, 100.0], thin).verdict == (
        "misaligned", "undecided", "misaligned", "safe",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("plateau", "degrees"), [(True, None), (False, None), (True, 3.0), (False, 3.0), (True, 12.0)]
)
def test_the_bounds_hold_the_truth_at_the_level_claimed(plateau, degrees):
    """Measured again and again: each bound fails as rarely as it says. A plateau is the hardest
    case: the fastest-looking of many equal dims looks too fast. Of errors that are estimated
    themselves, from a few values, the normal's quantile would fail several times as often."""
    draw = np.random.default_rng(1)
    dims = np.arange(96, 160)
    true = np.full(len(dims), 100.0) if plateau else 100 + 40.0 * (dims % 8 != 0) + dims / 10
    error = np.where(dims % 3, 0.01, 0.03)
    wanted, times = np.array(penalty(true.tolist())), 400
    below = above = normal = 0.0
    for _ in range(times):
        latency, known = true * np.exp(draw.normal(0, error)), error
        if degrees:
            known = error * np.sqrt(draw.chisquare(degrees, len(dims)) / degrees)
            normal += np.mean(judge(latency, known).low > wanted + 1e-9)
        judged = judge(latency, known, degrees=degrees and [degrees] * len(dims))
        below += np.mean(judged.low > wanted + 1e-9)
        above += np.mean(judged.high < wanted - 1e-9)
    chance = 1.3 * VERDICT_LEVEL  # of ten thousands of judgements
    assert below / times <= chance and above / times <= chance
    assert degrees != 3.0 or not plateau or normal / times > chance


def test_an_interval_that_ends_at_the_tolerance_is_safe():
    assert verdict_of(0.0, 0.02, 0.02) == "safe"
    assert verdict_of(0.02, 0.05, 0.02) == "undecided"
    assert verdict_of(0.0201, 0.05, 0.02) == "misaligned"
