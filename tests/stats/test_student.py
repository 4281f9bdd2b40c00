"""Quantiles of Student's t are the same with scipy and without."""

import numpy as np
import pytest
from scipy.special import stdtrit

from gacprof.stats.student import exceeded, without_scipy

DEGREES = np.array([0.3, 0.7, 1, 1.3, 2, 2.4, 3, 5, 7.7, 12, 30, 100, 1e3, 1e4, 1e6])


@pytest.mark.parametrize("level", [0.45, 0.2, 0.025, 6e-3, 1e-4, 1e-7])
def test_a_plain_install_has_scipys_quantiles(level):
    expected = -stdtrit(DEGREES, level)
    assert np.allclose(without_scipy(level, DEGREES), expected, rtol=1e-6, atol=0)
    assert (exceeded(level, DEGREES) == expected).all()


def test_each_of_several_is_in_its_place():
    found = without_scipy(0.01, np.array([[5.0, 2.0], [2.0, 9.0]]))
    assert found.shape == (2, 2) and found[0, 1] == found[1, 0] > found[0, 0] > found[1, 1]
