"""Safe, misaligned, undecided: what makes a size so."""

from __future__ import annotations

import random
from math import inf, log

import numpy as np
import pytest
from recorded_noise import (
    FIRST,
    SIZES,
    STATES,
    curve_of_noise,
    judged_curve,
    recorded,
    stepped,
)

from gacprof.cliffmap.fit import fit_blocks
from gacprof.cliffmap.judge import comparable, judge_sizes
from gacprof.core.points import Block

TOLERANCE = 0.02


def judged(latencies: dict[int, float], error: float = 0.0) -> dict[int, str]:
    sizes = sorted(latencies)
    log_us = [log(latencies[size]) for size in sizes]
    verdicts = judge_sizes(sizes, log_us, [error] * len(sizes), TOLERANCE)
    return {v.size: v.verdict for v in verdicts}


def multiples_of_8_are_fast(slow: float) -> dict[int, float]:
    return {size: 100.0 * (1 if size % 8 == 0 else slow) for size in range(96, 137)}


@pytest.mark.parametrize("seed", range(5))
def test_a_penalty_is_latency_over_the_best_size_at_least_as_large(seed: int) -> None:
    draw = random.Random(seed)
    sizes = sorted(draw.sample(range(64, 200), 40))
    latencies = [draw.uniform(50, 100) for _ in sizes]
    verdicts = judge_sizes(sizes, [log(us) for us in latencies], [0.0] * 40, TOLERANCE)
    for i, verdict in enumerate(verdicts):
        assert verdict.penalty is not None
        assert verdict.penalty.value == pytest.approx(latencies[i] / min(latencies[i:]) - 1, 1e-5)
        assert (verdict.verdict == "misaligned") == (verdict.penalty.value > TOLERANCE)


def test_exact_latencies_are_decided() -> None:
    verdicts = judged(multiples_of_8_are_fast(1.4))
    for size in range(96, 129):
        assert verdicts[size] == ("safe" if size % 8 == 0 else "misaligned")


def test_a_penalty_at_the_tolerance_is_safe() -> None:
    assert set(judged(multiples_of_8_are_fast(1.019)).values()) <= {"safe", "undecided"}
    assert judged(multiples_of_8_are_fast(1.019))[97] == "safe"


@pytest.mark.parametrize("error", [0.01, 0.1, 1.0, inf])
def test_noise_never_makes_a_size_safe(error: float) -> None:
    verdicts = judged(multiples_of_8_are_fast(1.03), error)
    assert "safe" not in {v for size, v in verdicts.items() if size % 8}
    assert set(judged(multiples_of_8_are_fast(1.0), max(error, 0.1)).values()) == {"undecided"}


def test_a_size_is_safe_only_beside_what_it_could_be_padded_to() -> None:
    sizes = [100, 101, 104, 112, 127, 128]
    assert dict(zip(sizes, comparable(sizes), strict=True)) == {
        100: True,
        101: True,
        104: True,
        112: True,
        127: True,
        128: True,
    }
    assert not any(comparable([100, 101, 112, 128])[:2]), "104 was not measured"
    assert not comparable([128, 512])[0], "nothing near it was measured"
    assert judged({100: 1.0, 101: 1.0, 112: 1.0})[100] == "undecided"


@pytest.mark.parametrize("state", STATES)
def test_recorded_noise_hardly_makes_a_finding(state: str) -> None:
    draw, noise = np.random.default_rng(7), recorded(state)
    curves = [judged_curve(curve_of_noise(noise, 24, draw)) for _ in range(8)]
    assert sum(bool(c.cliffs or c.with_verdict("misaligned")) for c in curves) <= 1


def test_steps_of_a_fifth_are_seen_in_recorded_noise() -> None:
    draw, seen = np.random.default_rng(3), 0
    for state in STATES:
        noise = recorded(state)
        for _ in range(5):
            curve = judged_curve(stepped(curve_of_noise(noise, 24, draw), 17, 0.2))
            seen += any(cliff.after == FIRST + 17 for cliff in curve.cliffs)
    assert seen >= 0.52 * 5 * len(STATES)  # 0.2.0 had 58 % of 1,200 curves


def test_sizes_4_percent_slower_are_never_called_safe_in_recorded_noise() -> None:
    draw = np.random.default_rng(5)
    slow = np.array([0.0392 * (size % 8 != 0) for size in SIZES])
    for state in STATES:
        noise = recorded(state)
        for _ in range(3):
            curve = judged_curve(curve_of_noise(noise, 48, draw) + slow)
            assert all(size % 8 == 0 for size in curve.with_verdict("safe"))


def verdicts_by_a_clock(step_us: float) -> dict[int, str]:
    """Verdicts on sizes of which those that are no multiple of 8 are 3 % slower, timed in steps,
    but for those beyond 128, which few larger ones stand beside."""
    draw, sizes, blocks = random.Random(1), range(96, 161), []
    for number in range(24):
        order = draw.sample(sizes, len(sizes))
        times = [103.0 * (1.0 if size % 8 == 0 else 1.03) for size in order]
        read = [round(us * draw.gauss(1, 0.002) / step_us) * step_us for us in times]
        blocks.append(Block("x", number % 3, tuple(order), tuple(read)))
    fit = fit_blocks(blocks)
    verdicts = judge_sizes(fit.sizes, fit.log_us.tolist(), fit.error.tolist(), 0.02, fit.degrees)
    return {verdict.size: verdict.verdict for verdict in verdicts if verdict.size <= 128}


@pytest.mark.parametrize("step_us", [2.0, 5.0, 10.0, 200.0])
def test_a_clock_coarser_than_the_tolerance_decides_nothing(step_us: float) -> None:
    assert set(verdicts_by_a_clock(step_us).values()) == {"undecided"}


@pytest.mark.parametrize("step_us", [0.001, 0.1])
def test_a_fine_clock_decides(step_us: float) -> None:
    for size, verdict in verdicts_by_a_clock(step_us).items():
        assert verdict == ("safe" if size % 8 == 0 else "misaligned")


def test_the_level_of_a_block_does_not_count() -> None:
    times = {size: 50.0 + size for size in range(8, 40)}
    draw, blocks = random.Random(1), []
    for number in range(12):
        order = draw.sample(sorted(times), len(times))
        level = draw.uniform(1, 10)
        blocks.append(Block("x", number // 4, tuple(order), tuple(level * times[s] for s in order)))
    fit = fit_blocks(blocks)
    assert np.diff(fit.log_us) == pytest.approx(np.diff(np.log([times[s] for s in fit.sizes])))


def test_a_curve_of_disturbed_calls_is_undecided_not_flat() -> None:
    order = tuple(range(8, 40))
    times = tuple(100.0 if size < 12 else float("nan") for size in order)
    fit = fit_blocks([Block("x", number // 4, order, times) for number in range(12)])
    verdicts = judge_sizes(fit.sizes, fit.log_us.tolist(), fit.error.tolist(), TOLERANCE)
    assert fit.contended
    assert {v.verdict for v in verdicts} == {"undecided"}
    assert {v.latency_us for v in verdicts} == {None}
