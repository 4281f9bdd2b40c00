"""Random and adversarial knapsacks, small enough to know the answer."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Case:
    """``values`` are ``whole × unit`` exactly; ``latency`` is in eighths, so that it adds up."""

    family: str
    costs: list
    whole: list
    unit: float
    latency: list
    budget: int
    limit: float

    @property
    def values(self):
        return [row * self.unit for row in self.whole]


def _uncorrelated(rng, cost, top):
    return rng.integers(0, top + 1, len(cost))


def _fine(rng, cost, top):
    """Values with all the bits of a double between 0 and 1."""
    return rng.integers(0, 2**52, len(cost))


def _linear(rng, cost, top):
    """Eq. 4 of the paper: value proportional to cost, one score per class."""
    return cost * rng.integers(1, 4)


def _subset_sum(rng, cost, top):
    return cost.copy()


def _strongly_correlated(rng, cost, top):
    return cost + top // 10 + 1


def _almost_tied(rng, cost, top):
    """Equal but for a few units in the last place."""
    return 2**52 + rng.integers(0, 4, len(cost))


def _ties(rng, cost, top):
    return rng.integers(-1, 2, len(cost))


def _all_equal(rng, cost, top):
    return np.full(len(cost), 7)


def _concave(rng, cost, top):
    """Tail energy: negative, rising with cost, flattening out."""
    return -((4 * top + 1 - cost) ** 2)


def _not_monotone(rng, cost, top):
    return -((cost - top // 2) ** 2) + rng.integers(-2, 3, len(cost))


def _two_scales(rng, cost, top):
    return rng.integers(0, 3, len(cost)) * 2**45 + rng.integers(0, 3, len(cost))


VALUES = (
    _uncorrelated, _fine, _linear, _subset_sum, _strongly_correlated, _almost_tied, _ties,
    _all_equal, _concave, _not_monotone, _two_scales,
)  # fmt: skip

TOPS = (2, 9, 100, 10**6)
UNITS = (1.0, 2.0**-52, 2.0**-30, 2.0**700, 2.0**-900)


def small(rng):
    """Up to 6 classes of up to 6 candidates, of any cost."""
    count = int(rng.integers(1, 7))
    most = {1: 6, 2: 6, 3: 6, 4: 5, 5: 4, 6: 4}[count]
    return _case(rng, count, most, int(rng.choice(TOPS)))


def medium(rng, *, two):
    """Dozens of classes of small costs, for the dense table."""
    count = int(rng.integers(2, 12 if two else 50))
    return _case(rng, count, 8, int(rng.choice((2, 5, 8) if two else (3, 10, 60))))


def _case(rng, count, most, top):
    values = VALUES[rng.integers(len(VALUES))]
    steps = rng.integers(1, 5, count) if rng.random() < 0.3 else np.ones(count, dtype=int)
    costs, whole, latency = [], [], []
    for step in steps:
        cost = rng.integers(0, top + 1, int(rng.integers(1, most + 1))) * step
        costs.append(cost)
        whole.append(values(rng, cost, top).astype(np.int64))
        latency.append((rng.integers(0, 40, len(cost)) if rng.random() < 0.7 else cost % 41) / 8)
    if rng.random() < 0.15:  # identical classes
        costs, whole, latency = costs[:1] * count, whole[:1] * count, latency[:1] * count
    low, high = (sum(int(f(c)) for c in costs) for f in (np.min, np.max))
    fast, slow = (sum(float(f(t)) for t in latency) for f in (np.min, np.max))
    limit = fast + np.floor((slow - fast) * 8 * rng.random()) / 8
    budget = int(rng.integers(low, high + 1))
    unit = float(rng.choice(UNITS))
    return Case(values.__name__.strip("_"), costs, whole, unit, latency, budget, float(limit))
