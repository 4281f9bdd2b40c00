"""The two-way fit: planted effects come back from drifting blocks, and errors are honest."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import t as student

from gacprof.stats.blocks import block_row, log_matrix
from gacprof.stats.fit import fit_blocks, moderated, quartile_variance, two_way
from gacprof.stats.noise import aa_floor, half_sample_differences

SLOTS = 40
EFFECT = np.log(np.linspace(50, 90, SLOTS))


def blocks(seed, count=24, spread=0.01, drift=0.3, processes=1, between=0.0):
    """Log times [blocks, slots] of slots with planted effects: the machine drifts, calls are off
    each for itself, and a process favours some slots."""
    draw = np.random.default_rng(seed)
    process = np.arange(count) * processes // count
    level = drift * np.sin(np.arange(count) / 3)[:, None] + draw.normal(0, 0.05, (count, 1))
    state = draw.normal(0, between, (processes, SLOTS))[process]
    return EFFECT + level + state + draw.normal(0, spread, (count, SLOTS)), process


def contrasts(values):
    return values - np.mean(values)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=10)
def test_planted_effects_come_back_whatever_the_drift(seed):
    slot, _ = two_way(blocks(seed)[0])
    assert contrasts(slot) == pytest.approx(contrasts(EFFECT), abs=6 * 0.01 * 1.3 / 24**0.5)


@given(st.integers(0, 2**32 - 1), st.floats(0.05, 3.0))
@settings(max_examples=10)
def test_calls_that_take_longer_now_and_then_move_nothing(seed, longer):
    """A fifth of all calls is disturbed: as much again or up to twenty times the time."""
    log_us, _ = blocks(seed, drift=0.0)
    hit = np.random.default_rng(seed).random(log_us.shape) < 0.2
    calm, disturbed = two_way(log_us)[0], two_way(log_us + longer * hit)[0]
    assert contrasts(disturbed) == pytest.approx(contrasts(calm), abs=0.01)


def test_a_state_that_slows_some_slots_in_a_third_of_the_blocks_moves_nothing():
    """Its fit must not take the slowed slots for the rule and the others for fast."""
    log_us = np.tile(EFFECT, (12, 1))
    log_us[::3, :12] += 0.7
    assert contrasts(two_way(log_us)[0]) == pytest.approx(contrasts(EFFECT), abs=1e-9)


@pytest.mark.parametrize(
    ("count", "processes", "between"),
    [(12, 3, 0.0), (96, 6, 0.01), (24, 3, 0.02)],
)
def test_errors_are_calibrated(count, processes, between):
    """Of deviations from the truth 5 % lie outside what Student's t says holds 95 %, or fewer."""
    chances, ratios = [], []
    for seed in range(12):
        fit = fit_blocks(*blocks(seed, count, 0.01, 0.3, processes, between))
        ratio = np.abs(contrasts(fit.effect - EFFECT)) / fit.error
        chances += (2 * student.sf(ratio, fit.degrees)).tolist()
        ratios += ratio.tolist()
    assert 0.8 < np.sqrt(np.mean(np.square(ratios))) < 1.3
    assert np.mean(np.array(chances) < 0.05) < 0.1
    assert np.mean(np.array(chances) < 0.001) < 0.01


@pytest.mark.parametrize("count", [12, 48])
def test_the_variance_of_a_quartile_is_what_the_bootstrap_finds(count):
    """Never below the truth, and less than a third above it from 24 values on."""
    draw = np.random.default_rng(count)
    estimated = quartile_variance(draw.normal(0, 1, (count, 500))).mean()
    true = np.quantile(draw.normal(0, 1, (count, 20_000)), 0.25, axis=0).var()
    assert 1.0 < estimated / true < (1.5 if count < 24 else 1.33)


def test_few_values_that_lie_close_together_by_chance_are_no_small_variance():
    """Equal variances, each estimated with 4 degrees of freedom: the prior takes over. Unequal
    ones, known well, stay as they are."""
    draw = np.random.default_rng(0)
    equal = draw.chisquare(4, 200) / 4
    variance, degrees = moderated(equal, np.full(200, 4.0))
    assert np.ptp(variance) < 0.3 * np.ptp(equal) and degrees.min() > 50
    unequal = np.exp(draw.normal(0, 1, 200))
    variance, degrees = moderated(unequal, np.full(200, 200.0))
    assert variance == pytest.approx(unequal, rel=0.5, abs=0.02) and degrees.max() < 210
    exact, degrees = moderated(np.zeros(5), np.full(5, 4.0))
    assert not exact.any() and np.isinf(degrees).all()


def test_blocks_of_one_process_do_not_hide_what_processes_differ_by():
    within = fit_blocks(*blocks(0, 48, between=0.02))
    between = fit_blocks(*blocks(0, 48, between=0.02, processes=6))
    assert np.median(between.error) > 3 * np.median(within.error)


@pytest.mark.parametrize("between", [0.0, 0.02])
def test_what_processes_differ_by_lies_below_its_bound(between):
    """In 95 % of fits, of 16 slots that a second process calls; few slots bound nothing."""
    held = near = 0
    for seed in range(24):
        first, _ = blocks(seed, 12, 0.005, 0.3, 1, between)
        second, _ = blocks(seed + 100, 4, 0.005, 0.3, 1, between)
        second[:, 16:] = np.nan
        log_us, process = np.concatenate([first, second]), np.repeat([0, 1], [12, 4])
        most = fit_blocks(log_us, process).between_most ** 0.5
        held += most > between
        near += most < 2.5 * between + 0.005
        assert fit_blocks(log_us[:, :8], process).between_most == np.inf
    assert held >= 21 and near >= 21


def test_partial_blocks_are_tied_together_by_the_slots_they_share():
    log_us, _ = blocks(5, 60)
    draw = np.random.default_rng(5)
    for row in log_us:
        row[draw.permutation(SLOTS)[12:]] = np.nan
    fit = fit_blocks(log_us)
    assert contrasts(fit.effect) == pytest.approx(contrasts(EFFECT), abs=0.03)
    assert fit.counts.tolist() == np.sum(~np.isnan(log_us), axis=0).tolist()


def test_slots_that_share_no_block_with_most_are_not_judged():
    log_us, _ = blocks(6, 40, drift=0.3)
    log_us[:20, 25:] = log_us[20:, :25] = np.nan
    fit = fit_blocks(log_us)
    assert np.isfinite(fit.error[:25]).all() and np.isinf(fit.error[25:]).all()


def test_a_slot_never_called_and_one_called_thrice_are_not_judged():
    log_us, _ = blocks(7)
    log_us[:, 3] = np.nan
    log_us[3:, 4] = np.nan
    fit = fit_blocks(log_us)
    assert np.isnan(fit.effect[3]) and np.isinf(fit.error[[3, 4]]).all()
    assert np.isfinite(np.delete(fit.error, [3, 4])).all()


def test_a_fit_of_nothing_is_refused():
    for shape in ((0, 4), (4, 0), (4,)):
        with pytest.raises(ValueError, match="blocks and slots"):
            fit_blocks(np.zeros(shape))


@pytest.mark.parametrize(("processes", "between"), [(1, 0.0), (4, 0.02)])
def test_the_floor_predicts_how_two_sweeps_differ(processes, between):
    """Replicates of one sweep, each half of the processes against the other, differ as the
    slots of two independent sweeps of the same length do."""
    assert aa_floor(np.arange(1, 101) / 1000) == pytest.approx(0.095)
    assert aa_floor([-0.3]) == pytest.approx(0.3)
    with pytest.raises(ValueError, match="at least one pair"):
        aa_floor([])
    estimated, found = [], []
    for seed in range(30):
        log_us, process = blocks(2 * seed, 24, processes=processes, between=between)
        again, _ = blocks(2 * seed + 1, 24, processes=processes, between=between)
        pairs = [(i, i) for i in range(SLOTS)]
        estimated.append(aa_floor(half_sample_differences(log_us, process, pairs)))
        found.append(aa_floor(contrasts(two_way(log_us)[0]) - contrasts(two_way(again)[0])))
    assert np.mean(estimated) == pytest.approx(np.mean(found), rel=0.2)


def rows_of(log_us, disturbed):
    """As the devices tell them: rows of (slot, µs, disturbed)."""
    return [
        block_row(
            (slot, float(np.exp(log_us[block, slot])), bool(disturbed[block, slot]))
            for slot in range(SLOTS)
        )
        for block in range(len(log_us))
    ]


def test_calls_that_waited_for_a_core_move_nothing_even_where_most_did():
    """Seven of ten calls wait for a scheduler's slice, and take four times as long."""
    log_us, process = blocks(3, count=40, processes=4)
    waited = np.random.default_rng(4).random(log_us.shape) < 0.7
    slow = log_us + waited * np.log(4)
    estimated = fit_blocks(log_matrix(rows_of(slow, waited), SLOTS)[0], process)
    assert contrasts(estimated.effect) == pytest.approx(contrasts(EFFECT), abs=0.03)
    without = fit_blocks(slow, process)
    assert np.abs(contrasts(without.effect) - contrasts(EFFECT)).max() > 0.1


def test_a_slot_of_which_every_call_waited_is_not_judged():
    log_us, process = blocks(5)
    waited = np.zeros(log_us.shape, bool)
    waited[:, 7] = True
    log_us[:, 7] += np.linspace(1, 2, len(log_us))
    found = fit_blocks(log_matrix(rows_of(log_us, waited), SLOTS)[0], process)
    assert np.isinf(found.error[7]) and np.isfinite(np.delete(found.error, 7)).all()
    assert EFFECT[7] + 0.5 < found.effect[7] < EFFECT[7] + 2  # the least disturbed tell most


def test_where_most_slots_have_waited_all_calls_stay():
    log_us, _ = blocks(6)
    waited = np.ones(log_us.shape, bool)
    assert np.allclose(log_matrix(rows_of(log_us, waited), SLOTS)[0], log_us)
