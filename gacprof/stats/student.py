"""Quantiles of Student's t, by scipy where the extra "measure" has brought it, else by the same
function's textbook form: a map is judged alike in a plain install, which is to stay small."""

from __future__ import annotations

from functools import cache, lru_cache
from importlib.util import find_spec
from math import exp, lgamma, log, log1p

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

STEPS, ENOUGH = 60, 1e-12
"""Of Newton's method: six or so do."""
TERMS, EXACT = 10_000, 1e-14
"""Of a continued fraction: some tens do but for very many degrees of freedom."""


def exceeded(level: float, degrees: Floats) -> Floats:
    """What values with so many ``degrees`` of freedom (each finite and above 0) exceed with the
    chance ``level`` (above 0, below a half)."""
    if not _has_scipy():
        return without_scipy(level, degrees)
    from scipy.special import stdtrit  # what scipy.stats.t calls; that takes seconds to import

    return np.asarray(-stdtrit(degrees, level))


@cache
def _has_scipy() -> bool:
    return find_spec("scipy") is not None


def without_scipy(level: float, degrees: Floats) -> Floats:
    each, places = np.unique(degrees, return_inverse=True)
    return np.array([_exceeded(level, n) for n in each.tolist()])[places].reshape(degrees.shape)


@lru_cache(maxsize=1 << 16)
def _exceeded(level: float, degrees: float) -> float:
    """By Newton's method on the logarithm of the chance over that of the value, which is concave
    and falls: a step from above the root never passes it, one from below does so once."""
    a, at = degrees / 2, 0.0
    constant = lgamma(a + 0.5) - lgamma(a) - lgamma(0.5)
    for _ in range(STEPS):
        ratio = 2 * at - log(degrees)  # log of value² / degrees
        log_z, log_rest = -_softplus(ratio), -_softplus(-ratio)
        front = constant + a * log_z + 0.5 * log_rest  # log of value · density, the chance's slope
        chance = _log_chance(log_z, log_rest, a, front)
        step = (chance - log(level)) / exp(front - chance)
        at += step
        if abs(step) < ENOUGH:
            break
    return exp(at)


def _softplus(x: float) -> float:
    return x + log1p(exp(-x)) if x > 0 else log1p(exp(x))


def _log_chance(log_z: float, log_rest: float, a: float, front: float) -> float:
    """log P(T > value): half of the regularised incomplete beta function I(z; a, 1/2) at
    z = 2a / (2a + value²), or of 1 − I(1 − z; 1/2, a) where z is large."""
    if log_z <= log((a + 1) / (a + 2.5)):
        return front - log(a * _fraction(exp(log_z), a, 0.5)) - log(2)
    other = exp(front) / (0.5 * _fraction(exp(log_rest), 0.5, a))
    return log1p(-other) - log(2)


def _fraction(z: float, a: float, b: float) -> float:
    """The continued fraction of I(z; a, b) (Abramowitz and Stegun 26.5.8), evaluated forwards; it
    converges fast for z below (a + 1) / (a + b + 2)."""
    before, found = 1.0, 1 - (a + b) * z / (a + 1)  # the last two convergents
    share = 1.0  # of their denominators, the one before over the last
    for step in range(2, TERMS):
        m = step // 2
        if step % 2:
            term = -(a + m) * (a + b + m) * z / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * z / ((a + 2 * m - 1) * (a + 2 * m))
        whole = 1 + term * share
        before, found = found, (found + term * share * before) / whole
        share = 1 / whole
        if abs(found - before) <= EXACT * abs(found):
            break
    return found
