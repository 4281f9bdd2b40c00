"""Paired differences: exact for a model against itself, and of the right width otherwise."""

from __future__ import annotations

import numpy as np
import pytest

from gacprof.evaluation.comparison import FEWEST, perplexity_change


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


def test_a_stricter_level_is_wider():
    draw = np.random.default_rng(4)
    a, b, tokens = draw.normal(900, 9, 20), draw.normal(900, 9, 20), np.full(20, 512.0)
    wide, narrow = (perplexity_change(a, b, tokens, level) for level in (0.01, 0.05))
    assert wide.low < narrow.low < narrow.high < wide.high


def test_there_is_no_interval_from_few_windows_nor_from_nan():
    few = np.ones(FEWEST - 1)
    assert perplexity_change(few, few, few, 0.05) is None
    enough = np.ones(FEWEST)
    assert perplexity_change(enough, enough, enough, 0.05) is not None
    broken = enough.copy()
    broken[2] = np.nan
    assert perplexity_change(broken, enough, enough, 0.05) is None
