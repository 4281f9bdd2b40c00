"""The definitions, on curves whose answer is known, and on noise, where there is none."""

from __future__ import annotations

from math import expm1, inf, log1p, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gacprof.cliffmap import detect
from gacprof.cliffmap.detect import label
from gacprof.stats.judge import quantiles
from gacprof.stats.periods import find_period
from gacprof.sweeping.for_checkpoint import PERIODS, sizes_near

DIMS = list(range(64, 320))


def noisy(latency, spread, seed):
    return [float(t) for t in latency * np.random.default_rng(seed).normal(1, spread, len(latency))]


def edges(d, latency, floor):
    """The edges where every dim's error is such that jumps up to ``floor`` are noise."""
    error = log1p(floor) / quantiles(detect.FAMILY / 2 / (len(d) - 1), None, 1)[0] / sqrt(2)
    return [(e.before, e.after) for e in detect.edges(d, latency, [error] * len(d))]


def test_envelope_and_penalty_are_what_padding_would_give():
    assert detect.envelope([3.0, 5.0, 2.0, 4.0]) == [2.0, 2.0, 2.0, 4.0]
    assert detect.penalty([3.0, 5.0, 2.0, 4.0]) == pytest.approx([0.5, 1.5, 0.0, 0.0])


def test_the_frontier_of_a_staircase_is_the_last_dim_of_each_step():
    latency = [10.0 if d < 128 else 20.0 if d < 256 else 30.0 for d in DIMS]
    assert detect.frontier(DIMS, latency, 0.01) == [127, 255, 319]


def test_noise_on_a_plateau_adds_nothing_to_the_frontier():
    latency = noisy(np.full(len(DIMS), 10.0), 0.002, seed=1)
    assert detect.frontier(DIMS, latency, 0.02) == [319]


def test_the_floor_is_raised_for_many_edges_and_assumed_where_there_is_none():
    few, many = detect.cliff_floor([0.01] * 2), detect.cliff_floor([0.01] * 101)
    assert few == pytest.approx(expm1(2.968 * 0.01 * 2**0.5), rel=1e-3)  # 0.3 %, two-sided
    assert 1.3 * few < many < 2 * few
    assert detect.cliff_floor(None) == detect.cliff_floor([inf, inf]) == detect.ASSUMED_FLOOR


def test_one_thin_dim_hides_its_own_edges_only():
    """A jump of 10 % between well-known dims is a cliff, whatever another dim's error."""
    d, latency = list(range(100, 120)), [10.0] * 10 + [11.0] * 10
    error = [0.01] * 19 + [0.2]
    assert [c.after for c in detect.edges(d, latency, error)] == [110]
    assert detect.cliff_floor(error) == pytest.approx(detect.cliff_floor([0.01] * 20))


def test_an_edge_of_errors_that_are_hardly_known_must_be_larger():
    """Student's t: at 2 degrees of freedom 113 standard errors, where the normal needs 4.0."""
    latency, error = [10.0] * 10 + [11.0] * 10, [0.01] * 20
    found = {n: detect.edges(range(20, 40), latency, error, degrees=[n] * 20) for n in (2, 60, inf)}
    assert [len(cliffs) for cliffs in found.values()] == [0, 1, 1]


def test_a_smooth_ramp_swept_in_large_steps_has_no_cliff():
    d = [256, 512, 1024, 2048, 4096]
    assert edges(d, [float(x) for x in d], 0.02) == []
    assert edges(d, [100 + x / 40 for x in d], 0.02) == []
    assert edges(d[:3], [1.0, 2.0, 4.5], 0.05) == [(512, 1024)], "more than the work explains"
    assert detect.edges([8, 16, 24], [10.0, 20.0, 10.0], [0.001, inf, 0.001]) == []


def test_a_jump_within_the_errors_is_no_cliff():
    assert detect.edges([96, 97], [10.0, 12.0], [0.06, 0.06]) == []
    (edge,) = detect.edges([96, 97], [10.0, 12.0], [0.01, 0.01])
    assert edge.low < edge.jump < edge.high
    assert detect.edges([96, 97], [10.0, 12.0], [0.01, 0.01], looked_at=10**12) == [edge]
    assert detect.edges([96, 97], [10.0, 11.0], [0.01, 0.01], looked_at=10**12) == []


@given(
    floor=st.floats(0.01, 0.1),
    at=st.integers(65, 318),
    jump=st.floats(0.15, 3.0),
    up=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_planted_cliff_is_found_and_it_alone(floor, at, jump, up, seed):
    step = np.where(np.array(DIMS) >= at, 1 + jump, 1.0)
    if not up:
        step = 1 / step
    latency = noisy(50 * step, floor / 12, seed)  # an A/A floor lies well outside the spread
    assert edges(DIMS, latency, floor) == [(at - 1, at)]


@given(n=st.integers(20, 400), spread=st.floats(0.0005, 0.03), seed=st.integers(0, 2**32 - 1))
def test_pure_noise_has_no_cliff_and_no_period(n, spread, seed):
    d = list(range(64, 64 + n))
    latency = noisy(np.full(n, 20.0), spread, seed)
    # The 95 % quantile of |a / b − 1| of two medians; a cliff here is a difference of 6 σ√2.
    floor = 6 * 2**0.5 * spread
    assert edges(d, latency, floor) == []
    assert find_period(d, latency, floor) is None


@given(seed=st.integers(0, 2**32 - 1), slope=st.floats(0.0, 2.0), n=st.integers(30, 300))
def test_a_noisy_ramp_has_no_period(seed, slope, n):
    d = np.arange(64, 64 + n)
    latency = noisy(10 + slope * d, 0.003, seed)
    assert find_period([int(x) for x in d], latency, 0.02) is None


@given(
    modulus=st.sampled_from([2, 4, 8, 16, 32]),
    start=st.integers(1, 5000),
    slow=st.floats(1.1, 2.0),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_planted_period_is_recovered(modulus, start, slow, seed):
    d = list(range(start, start + 6 * modulus + 60))
    latency = noisy(np.array([10.0 if x % modulus == 0 else 10 * slow for x in d]), 0.004, seed)
    period = find_period(d, latency, 0.02)
    assert period is not None and period.modulus == modulus
    fast, slower = period.classes
    assert fast.remainders == [0] and fast.ratio == 1.0
    assert slower.remainders == list(range(1, modulus))
    assert slower.ratio == pytest.approx(slow, rel=0.03)


@pytest.mark.parametrize("step", [12, 40, 48])
@pytest.mark.parametrize("monotone", [True, False])
def test_steps_that_are_no_powers_of_two_are_no_period(step, monotone):
    d = list(range(64, 512))
    latency = [50.0 + 5 * -(-x // step) if monotone else 10.0 if x % step == 0 else 13.0 for x in d]
    assert find_period(d, noisy(np.array(latency), 0.002, step), 0.01) is None


def test_noise_makes_hardly_ever_a_period():
    draw = np.random.default_rng(5)
    d = list(range(64, 164))
    found = [find_period(d, np.exp(draw.normal(0, 0.01, 100)).tolist()) for _ in range(300)]
    assert sum(period is not None for period in found) <= 1


def test_three_nested_classes_are_told_apart():
    d = list(range(4000, 4101))
    latency = [1.0 if x % 16 == 0 else 1.1 if x % 8 == 0 else 1.6 if x % 2 == 0 else 3.0 for x in d]
    period = find_period(d, latency, 0.02)
    assert period.modulus == 16
    assert [label("K", 16, c.remainders) for c in period.classes] == [
        "K % 16 = 0",
        "K % 16 = 8",
        "K % 2 = 0, K % 8 ≠ 0",
        "K % 2 = 1",
    ]


def test_a_period_survives_cliffs_and_growth():
    d = list(range(64, 320))
    latency = [
        (1.0 if x % 8 == 0 else 1.4) * (1 + x / 300) * (1 + (x > 128) + (x > 192)) for x in d
    ]
    assert find_period(d, latency, 0.05).modulus == 8


def test_a_sweep_in_steps_sees_only_multiples_of_its_step():
    d = list(range(64, 1024, 8))
    period = find_period(d, [1.0 if x % 32 == 0 else 1.3 for x in d], 0.05)
    assert period.modulus == 32
    assert [c.remainders for c in period.classes] == [[0], [8, 16, 24]]


@pytest.mark.parametrize(
    ("modulus", "remainders", "words"),
    [
        (8, [1, 2, 3, 4, 5, 6, 7], "K % 8 ≠ 0"),
        (8, [2, 4, 6], "K % 2 = 0, K % 8 ≠ 0"),
        (8, [0, 3], "K % 8 in 0, 3"),
        (4, [0, 1, 2, 3], "all K"),
    ],
)
def test_residue_classes_in_words(modulus, remainders, words):
    assert label("K", modulus, remainders) == words


@pytest.mark.parametrize("seed", range(3))
def test_dims_measured_here_and_there_show_no_period(seed):
    """As 'sweep --for' visits them: around several sizes, multiples of powers of two beside them.
    Multiples of 8 are served well, all else is 40 % slower."""
    rng = np.random.default_rng(seed)
    d = sorted(
        {
            size
            for own in rng.integers(60, 900, 3).tolist()
            for size in sizes_near(own, window=4.0, periods=PERIODS)
        }
    )
    latency = [(2 + size / 10) * (1.4 if size % 8 else 1.0) for size in d]
    assert find_period(d, noisy(np.array(latency), 0.003, seed), 0.01) is None
