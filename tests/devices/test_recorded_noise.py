"""On real noise a curve without a step shows none, and a planted step is found."""

import numpy as np
import pytest

from tests.support.recorded_noise import DIMS, FIRST, curve_of_noise, judged, planted, recorded

STATES = (
    "quiet-2-threads",
    "one-busy-process-2-threads",
    "loaded-2-threads",
    "loaded-1-threads",
    "overloaded-2-threads",
)
CURVES = 20
"""Of each state: 100 together. benchmarks/planted.py does twenty times as many."""


@pytest.fixture(scope="module")
def outcomes():
    draw = np.random.default_rng(1)
    found = []
    for state in STATES:
        noise = recorded(state)
        for _ in range(CURVES):
            flat = curve_of_noise(noise, 48, draw)
            curve = judged(flat)
            at = int(draw.integers(DIMS // 4, 3 * DIMS // 4))
            stepped = judged(planted(flat, at, 2 * curve.floor))
            found.append((curve, any(c.after == FIRST + at for c in stepped.cliffs)))
    return found


def test_at_most_one_curve_in_a_hundred_has_a_false_cliff_or_a_dim_called_misaligned(outcomes):
    assert sum(bool(curve.cliffs) for curve, _ in outcomes) <= len(outcomes) // 100
    assert sum(bool(curve.misaligned) for curve, _ in outcomes) <= len(outcomes) // 100


def test_a_step_of_two_floors_is_found(outcomes):
    """The floor is that of a usual edge: edges of thinner dims hide more."""
    assert sum(found for _, found in outcomes) >= 0.93 * len(outcomes)
