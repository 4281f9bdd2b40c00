"""Quantiles of Student's t, by scipy where the extra "measure" has brought it, else by the same
function's textbook form: a map is judged alike in a plain install, which is to stay small."""

from __future__ import annotations

from importlib.util import find_spec
from math import lgamma, log

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

HALVINGS = 60
"""Of an interval of logarithms some hundred wide: to the last digits of a double."""
STEPS, ENOUGH = 10_000, 1e-15
"""Of a continued fraction: some tens do but for very many degrees of freedom."""


def exceeded(level: float, degrees: Floats) -> Floats:
    """What values with so many ``degrees`` of freedom (each finite and above 0) exceed with the
    chance ``level`` (above 0, below a half)."""
    if find_spec("scipy") is None:
        return without_scipy(level, degrees)
    from scipy.special import stdtrit  # what scipy.stats.t calls; that takes seconds to import

    return np.asarray(-stdtrit(degrees, level))


def without_scipy(level: float, degrees: Floats) -> Floats:
    """The same by bisection of the chance's logarithm over that of the value."""
    each, places = np.unique(degrees, return_inverse=True)
    constant = np.array([lgamma(n / 2 + 0.5) - lgamma(n / 2) - lgamma(0.5) for n in each.tolist()])
    low, high = np.full(each.shape, -40.0), np.full(each.shape, 4.0)
    while (more := _log_chance(high, each, constant) > log(level)).any():
        high[more] *= 2
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        above = _log_chance(middle, each, constant) > log(level)
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return np.exp((low + high) / 2)[places].reshape(np.shape(degrees))


def _log_chance(log_value: Floats, degrees: Floats, constant: Floats) -> Floats:
    """log P(T > value): half of the regularised incomplete beta function I(z; n/2, 1/2) at
    z = n / (n + value²), or of 1 − I(1 − z; 1/2, n/2) where z is large."""
    a, ratio = degrees / 2, 2 * log_value - np.log(degrees)  # log of value² / n
    log_z, log_rest = -np.logaddexp(0, ratio), -np.logaddexp(0, -ratio)
    swap = log_z > np.log((a + 1) / (a + 2.5))
    first, second = np.where(swap, 0.5, a), np.where(swap, a, 0.5)
    z = np.exp(np.where(swap, log_rest, log_z))
    front = a * log_z + 0.5 * log_rest - np.log(first) + constant
    found = front - np.log(_fraction(z, first, second))
    return np.where(swap, np.log1p(-np.exp(np.minimum(found, -1e-300))), found) - log(2)


def _fraction(z: Floats, a: Floats, b: Floats) -> Floats:
    """The continued fraction of I(z; a, b) (Abramowitz and Stegun 26.5.8), evaluated forwards; it
    converges fast for z below (a + 1) / (a + b + 2)."""
    before, found = np.ones_like(z), 1 - (a + b) * z / (a + 1)  # the last two convergents
    share = np.ones_like(z)  # of their denominators, the one before over the last
    for step in range(2, STEPS):
        m = step // 2
        if step % 2:
            term = -(a + m) * (a + b + m) * z / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * z / ((a + 2 * m - 1) * (a + 2 * m))
        whole = 1 + term * share
        before, found = found, (found + term * share * before) / whole
        share = 1 / whole
        if (np.abs(found - before) <= ENOUGH * np.abs(found)).all():
            break
    return found
