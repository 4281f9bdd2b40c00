"""Times between measured sizes: exact where the data are a law, bounded by measured errors, never
across a step."""

from dataclasses import replace
from math import exp, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planted_elsewhere import FACTORS, K, M, N, planted_us

from gacprof.elsewhere.data import Surface
from gacprof.elsewhere.levels import DIFFER, Level, Levels, left_out


def surface(factor=1.0, engine="vllm", ms=M):
    grid = [[[planted_us(m, n, k, factor) for k in K] for n in N] for m in ms]
    return Surface(engine, "1", "bfloat16", np.array(ms), np.array(N), np.array(K), np.array(grid))


def level(levels, m, n, k):
    found = levels.at(m, n, k)
    assert isinstance(found, Level), found
    return found


LEVELS = Levels([surface(f, e) for e, f in FACTORS.items()], "bfloat16")


@given(
    st.sampled_from((1, 3, 12, 40, 200, 256, 257, 300, 700, 2048)),
    st.integers(N[0], N[-1]),
    st.integers(K[0], K[-1]),
)
def test_a_law_of_powers_is_found_again_between_its_sizes(m, n, k):
    time = level(LEVELS, m, n, k).time
    assert time.value == pytest.approx(planted_us(m, n, k), rel=1e-9)
    for factor in FACTORS.values():
        assert time.low <= planted_us(m, n, k, factor) * (1 + 1e-9)
        assert time.high >= planted_us(m, n, k, factor) * (1 - 1e-9)


def test_a_coarse_table_says_nothing_across_a_step_that_another_shows():
    coarse = surface(ms=(1, 2, 4, 8, 16, 64, 256, 512, 1024))
    finer = surface(engine="sglang")
    alone = Levels([coarse, finer], "bfloat16", "vllm")
    assert "beside a step" in str(alone.at(300, 512, 512))
    assert level(alone, 512, 512, 512).sources == ("vllm 1",)
    both = Levels([coarse, finer], "bfloat16")
    assert level(both, 300, 512, 512).sources == ("sglang 1",)


def test_outside_the_grid_one_step_is_taken_and_no_more():
    assert level(LEVELS, 1, 4 * N[-1], 512).time.value == pytest.approx(planted_us(1, 65536, 512))
    assert str(LEVELS.at(1, 4 * N[-1] + 1, 512)) == (
        "N=65537 is outside what was measured (128 to 16384)"
    )
    assert "K=31 is outside" in str(LEVELS.at(1, 512, 31))


def test_what_was_not_measured_is_not_filled_in():
    holed = surface()
    holed.latency_us[:, 2, 2] = np.nan
    levels = Levels([holed], "bfloat16")
    assert "not among what was measured" in str(levels.at(1, N[2], K[2]))
    assert "not among what was measured" in str(levels.at(1, N[2] + 1, K[2]))
    assert level(levels, 1, N[3], K[3])


def test_the_error_of_leaving_out_is_that_of_a_straight_line_through_the_neighbours():
    us = np.array([1.0, 3.0, 4.0]).reshape(1, 3, 1)
    one = Surface("vllm", "1", "bfloat16", np.array([1]), np.array([1, 2, 4]), np.array([8]), us)
    between, beyond = left_out(one, axis=1, rows=0)
    assert between.tolist() == pytest.approx([abs(log(4.0) / 2 - log(3.0))])
    assert beyond.tolist() == pytest.approx([abs(2 * log(3.0) - log(4.0))])


def test_bounds_hold_most_sizes_that_are_left_out_of_a_noisy_table():
    """End to end: every third N taken away and predicted from the others."""
    rng = np.random.default_rng(5)
    n = np.array([128 * 2**i for i in range(10)])
    us = np.exp(rng.normal(0, 0.1, (6, 10, 6)))
    us *= np.array(
        [[[planted_us(m, size, k) for k in K] for size in n] for m in (1, 2, 4, 8, 12, 16)]
    )
    m = np.array([1, 2, 4, 8, 12, 16])
    gone = np.array([2, 5, 8])
    kept = np.setdiff1d(np.arange(10), gone)
    noisy = Surface("vllm", "1", "bfloat16", m, n[kept], np.array(K), us[:, kept])
    levels = Levels([noisy], "bfloat16")
    inside = [
        level(levels, int(m[a]), int(n[b]), K[c]).time.low <= us[a, b, c]
        <= level(levels, int(m[a]), int(n[b]), K[c]).time.high
        for a in range(6) for b in gone for c in range(6)
    ]  # fmt: skip
    assert np.mean(inside) >= 0.9


def test_one_framework_alone_is_bounded_by_what_two_were_seen_to_differ_by():
    time = level(Levels([surface()], "bfloat16"), 64, 512, 512).time
    assert time.high / time.value == pytest.approx(exp(DIFFER))


def test_too_few_sizes_to_measure_an_error_give_no_time():
    us = np.array([1.0, 2.0]).reshape(1, 2, 1)
    two = Surface("vllm", "1", "bfloat16", np.array([1]), np.array([1, 4]), np.array([8]), us)
    assert "too few sizes" in str(Levels([two], "bfloat16").at(1, 2, 8))


def test_of_one_engine_how_engines_differ_is_no_error_but_how_one_repeats_is():
    engines = [surface(1.0, "vllm"), surface(4.0, "sglang")]
    together = Levels(engines, "bfloat16", None, [0.03] * 3)
    alone = Levels(engines, "bfloat16", "vllm", [0.03] * 3)
    assert level(together, 1, 512, 512).differ == pytest.approx(log(2.0))
    assert level(alone, 1, 512, 512).differ == 0.03
    assert level(alone, 1, 512, 512).us == pytest.approx(planted_us(1, 512, 512))


def test_times_that_the_host_bounds_say_nothing_of_products(measured):
    """One engine is flat at few rows, at over five times what others take: they answer."""
    surfaces = [s for s in measured.surfaces("h100") if s.dtype == "fp8"]
    flat = [
        replace(s, latency_us=np.maximum(s.latency_us, 500.0)) if s.framework == "vllm" else s
        for s in surfaces
    ]
    found = Levels(flat, "fp8").at(1, 512, 512)
    assert isinstance(found, Level)
    assert found.us < 5 and "vllm 0.24.0" not in found.sources
    alone = Levels(flat, "fp8", "vllm").at(1, 512, 512)
    assert (
        alone == "M=1, N=512, K=512 was measured where the host bounds the time, whatever the size"
    )
