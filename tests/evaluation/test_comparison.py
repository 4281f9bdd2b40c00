"""Verdicts of a bench: simultaneous, beyond the A/A replicate, and silent about nothing. Paired
differences of perplexities: exact for a model against itself, of the right width otherwise."""

import numpy as np
import pytest

from gacprof.evaluation.comparison import (
    FEWEST,
    NEGLIGIBLE,
    Ratio,
    decided,
    difference,
    fit_workload,
    half_width,
    perplexity_change,
)


def rounds_of(times):
    return range(len(times))


def noisy(seed, rounds=24, models=3, blocks=1):
    """A drifting machine where 3 of 10 calls are held up: log times [blocks, models]."""
    draw = np.random.default_rng(seed)
    drift = np.repeat(np.cumsum(draw.normal(0, 0.05, rounds)), blocks)[:, None]
    shape = (rounds * blocks, models)
    held_up = (draw.random(shape) < 0.3) * draw.exponential(0.3, shape)
    return drift + draw.normal(0, 0.01, shape) + held_up


def test_a_ratio_is_found_through_drift_and_hold_ups():
    times = 100 * np.exp(noisy(0, rounds=48) + np.log([1.0, 0.9, 1.0]))
    found = fit_workload(times, rounds_of(times))
    assert np.exp(found.log_ratio[1]) == pytest.approx(0.9, abs=0.01)
    assert found.log_ratio[0] == 0 and found.error[0] == 0
    assert found.latency_us[1] / found.latency_us[0] == pytest.approx(np.exp(found.log_ratio[1]))
    assert np.all(found.low_us <= found.latency_us) and np.all(found.latency_us <= found.high_us)


def test_the_reference_is_both_of_its_columns_and_the_replicate_is_compared_with_one():
    times = 100 * np.exp(noisy(1, rounds=48) * 0.01 + np.log([1.0, 1.1, 1.02]))
    found = fit_workload(times, rounds_of(times), replicate=True)
    assert found.latency_us[0] / found.latency_us[2] == pytest.approx(1.02**-0.5, rel=1e-3)
    assert np.exp(found.log_ratio) == pytest.approx([1.0, 1.1 / 1.02**0.5, 1.02], rel=1e-3)
    assert found.log_ratio[0] == 0 == found.error[0]
    assert np.all(found.low_us <= found.latency_us) and np.all(found.latency_us <= found.high_us)


@pytest.mark.slow
def test_equal_models_are_rarely_told_apart_even_without_the_replicate():
    """At a level of 5 %: 20 comparisons, so 1 expected; 5 or more has a chance of 0.3 %."""
    false = 0
    for seed in range(20):
        times = np.exp(noisy(seed, rounds=12))
        found = fit_workload(times, rounds_of(times), seed, replicate=True)
        false += abs(found.log_ratio[1]) > half_width(found.error[1], found.rounds, 0.05)
    assert false < 5


def test_blocks_of_one_round_are_no_independent_witnesses():
    """A model that runs slower for a whole round looks well known if each block counts alone."""
    draw = np.random.default_rng(3)
    per_round = np.repeat(draw.normal(0, 0.05, (12, 3)), 16, axis=0)
    times = np.exp(per_round + draw.normal(0, 0.005, (192, 3)))
    together = fit_workload(times, np.repeat(range(12), 16)).error[1]
    alone = fit_workload(times, range(192)).error[1]
    assert together > 2 * alone


def test_one_round_has_no_interval():
    with pytest.raises(ValueError, match="two rounds"):
        fit_workload(np.ones((4, 2)), [0, 0, 0, 0])


@pytest.mark.parametrize(
    ("ratio", "replicate", "said"),
    [
        (Ratio(-0.05, 0.02), Ratio(0.0, 0.01), "faster"),
        (Ratio(0.05, 0.02), Ratio(0.0, 0.01), "slower"),
        (Ratio(0.05, 0.06), Ratio(0.0, 0.01), "no difference shown"),  # its own interval
        (Ratio(0.05, 0.02), Ratio(-0.04, 0.02), "no difference shown"),  # the replicate's
        (Ratio(0.05, 0.02), Ratio(0.01, 0.05), "no difference shown"),
    ],
)
def test_a_difference_exceeds_its_own_interval_and_the_replicates(ratio, replicate, said):
    assert difference(ratio, replicate) == said


def test_it_is_decided_when_shown_or_when_negligible():
    aa = Ratio(0.0, 0.001)
    assert decided(Ratio(0.05, 0.01), aa)
    assert decided(Ratio(0.001, 0.008), aa)
    assert not decided(Ratio(0.001, NEGLIGIBLE), aa)
    assert not decided(Ratio(0.001, 0.008), aa, contended=True)


def test_a_model_against_itself_differs_by_exactly_nothing():
    draw = np.random.default_rng(0)
    nll, tokens = draw.normal(900, 50, 40), np.full(40, 512.0)
    found = perplexity_change(nll, nll.copy(), tokens, 0.05)
    assert (found.low, found.value, found.high) == (0.0, 0.0, 0.0)
    assert found.finding == "no difference shown"


def test_the_value_is_the_quotient_of_the_perplexities():
    draw = np.random.default_rng(1)
    tokens = np.array([1024.0, *[512.0] * 30, 77.0])
    a, b = (draw.normal(2.5, 0.2, 32) * tokens for _ in range(2))
    found = perplexity_change(a, b, tokens, 0.05)
    ratio = np.exp(a.sum() / tokens.sum()) / np.exp(b.sum() / tokens.sum())
    assert found.value == pytest.approx(ratio - 1)
    assert found.low < found.value < found.high
    better, worse = (perplexity_change(b + by * tokens, b, tokens, 0.05) for by in (-0.1, 0.1))
    assert (better.finding, worse.finding) == ("better", "worse")


def test_an_interval_of_95_percent_holds_the_truth_in_95_percent():
    draw = np.random.default_rng(2)
    tokens, held, tries = np.full(20, 512.0), 0, 200
    for _ in range(tries):
        hard = draw.normal(2.5, 0.5, 20)  # how hard each window is, for both alike
        a = (hard + 0.01 + draw.normal(0, 0.02, 20)) * tokens
        found = perplexity_change(a, hard * tokens, tokens, 0.05)
        held += found.low <= np.expm1(0.01) <= found.high
    assert 0.92 <= held / tries <= 0.98


def test_there_is_no_interval_from_few_windows_nor_from_nan():
    few = np.ones(FEWEST - 1)
    assert perplexity_change(few, few, few, 0.05) is None
    enough = np.ones(FEWEST)
    assert perplexity_change(enough, enough, enough, 0.05) is not None
    broken = enough.copy()
    broken[2] = np.nan
    assert perplexity_change(broken, enough, enough, 0.05) is None
