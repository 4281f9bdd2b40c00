"""The knapsack that is solved: all resources in exact integers; and subproblems of it.

Weights are counted from each class's minimum and divided by their greatest common divisor, and
``room`` is what the budget or limit leaves above the minima. A *choice* is an array with one
candidate per class: its place in the flat arrays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from gacprof.core.errors import SolverError
from gacprof.solver.problem import Classes, Floats, InfeasibleBudget, Ints

HEADROOM = 2**61
"""Sums of weights stay below this, so that no int64 sum or difference overflows."""


@dataclass(frozen=True)
class Resource:
    """Weights of all candidates, 0 for the least of each class, and the room for their sum."""

    weight: Ints
    room: int


@dataclass(frozen=True)
class Knapsack:
    """Maximise Σ values, Σ weights[k] within room[k] for every resource k, one item per class."""

    values: Floats
    weights: tuple[Ints, ...]
    room: tuple[int, ...]
    owner: NDArray[np.int32]

    def value(self, choice: Ints) -> float:
        return math.fsum(self.values[choice].tolist())

    def slack(self, choice: Ints) -> list[int]:
        """Room left by a choice."""
        return [r - int(w[choice].sum()) for w, r in zip(self.weights, self.room, strict=True)]

    def gain(self, choice: Ints, base: Ints) -> float:
        """value(choice) − value(base), summed where they differ, so that no digits cancel."""
        here = np.flatnonzero(choice != base)
        return float((self.values[choice[here]] - self.values[base[here]]).sum())

    def exact_gain(self, choice: Ints, base: Ints) -> Fraction:
        """value(choice) − value(base) without any rounding: what is left of the rounded sum is
        summed again until nothing is."""
        here = np.flatnonzero(choice != base)
        terms = [*self.values[choice[here]].tolist(), *(-self.values[base[here]]).tolist()]
        total = Fraction(0)
        while part := math.fsum(terms):
            total += Fraction(part)
            terms.append(-part)
        return total

    def loss(self, multipliers: Floats, choice: Ints, reference: Ints) -> float:
        """What a choice lacks of the dual bound of a ``reference`` that is best at these prices."""
        here = np.flatnonzero(choice != reference)
        new, old = choice[here], reference[here]
        reduced = self.values[old] - self.values[new]
        for price, weight in zip(multipliers, self.weights, strict=True):
            reduced += price * (weight[new] - weight[old])
        return float(reduced.sum() + multipliers @ self.slack(choice))


class Subproblem:
    """Some of the candidates of a knapsack, at least one in each class.

    ``ids`` are their places in the knapsack, ascending. ``values`` (counted from the first of each
    class) and ``weights`` are doubles: to find best choices and losses by, not to add up.
    """

    def __init__(self, knapsack: Knapsack, ids: Ints) -> None:
        everything = len(ids) == len(knapsack.values)
        take: Ints | slice = slice(None) if everything else ids
        self.knapsack, self.ids, self.owner = knapsack, ids, knapsack.owner[take]
        self.starts = np.searchsorted(self.owner, np.arange(self.owner[-1] + 1))
        values = knapsack.values[take]
        self.values = values - values[self.starts][self.owner]
        self.weights = [weight[take].astype(np.float64) for weight in knapsack.weights]
        self.widest = np.array([weight.max() for weight in self.weights])

    @property
    def classes(self) -> int:
        return len(self.starts)

    def greatest(self, amounts: Floats) -> Ints:
        """The choice of the first candidate of each class with the greatest amount."""
        top = np.maximum.reduceat(amounts, self.starts)
        at = np.flatnonzero(amounts == top[self.owner])
        return self.ids[at[np.searchsorted(self.owner[at], np.arange(self.classes))]]

    def priced(self, multipliers: Floats) -> Floats:
        """value − multipliers·weight of each candidate."""
        priced = self.values.copy()
        for price, weight in zip(multipliers, self.weights, strict=True):
            if price:
                priced -= price * weight
        return priced

    def near_best(self, multipliers: Floats, share: float) -> Subproblem:
        """Only the candidates that lose at most this share of the mean at these prices."""
        priced = self.priced(multipliers)
        loss = np.maximum.reduceat(priced, self.starts)[self.owner] - priced
        return Subproblem(self.knapsack, self.ids[loss <= share * float(loss.mean())])

    def best(self, multipliers: Floats) -> Ints:
        """A choice that is best at these prices of the resources."""
        return self.greatest(self.priced(multipliers))


def root_problem(
    values: Floats, resources: Sequence[Resource], classes: Classes
) -> Subproblem | None:
    """All candidates that fit beside the least of the other classes; None if a class has none."""
    fits = np.ones(len(values), dtype=bool)
    for one in resources:
        fits &= one.weight <= one.room
    ids = np.flatnonzero(fits)
    starts = np.searchsorted(ids, classes.starts)
    if (np.diff(np.append(starts, len(ids))) == 0).any():
        return None
    rooms = []
    for one in resources:
        most = sum(np.maximum.reduceat(one.weight[ids], starts).tolist())
        if most >= HEADROOM:
            raise SolverError("the costs' spread is beyond 64 bits: count in a larger unit")
        rooms.append(min(one.room, most))
    weights = tuple(one.weight for one in resources)
    return Subproblem(Knapsack(values, weights, tuple(rooms), classes.owner), ids)


def cost_resource(classes: Classes, budget: int) -> Resource:
    """Raises :class:`InfeasibleBudget`."""
    least = np.minimum.reduceat(classes.costs, classes.starts)
    floor = sum(least.tolist())
    if budget < floor:
        raise InfeasibleBudget(
            f"budget {budget} is {floor - budget} short: the least of every class costs {floor}",
            "budget",
            floor,
        )
    return _resource(classes.costs - np.repeat(least, classes.lengths), budget - floor)


def latency_resource(classes: Classes, limit: float, bits: int, reserve: int = 0) -> Resource:
    """Latencies rounded down to ``bits`` of their sum, so that no choice that fits is lost.

    ``reserve``: so many units are left unused; as many as there are classes, and whatever is
    within the room is within the limit. Raises :class:`InfeasibleBudget`.
    """
    times = classes.latency
    assert times is not None
    floor = math.fsum(np.minimum.reduceat(times, classes.starts).tolist())
    if limit < floor:
        raise InfeasibleBudget(
            f"limit {limit!r} is short: the fastest of every class takes {floor!r}", "limit", floor
        )
    within = times <= limit
    times = np.where(within, times, 0.0)
    most = math.fsum(np.maximum.reduceat(times, classes.starts).tolist())
    shift = bits - math.frexp(most)[1]
    whole = np.floor(np.ldexp(times, shift)).astype(np.int64)
    least = np.minimum.reduceat(np.where(within, whole, HEADROOM), classes.starts)
    # A sum rounds to the limit if it is not beyond the middle between that and the next double.
    ceiling = min(limit, 2 * most + 1)
    middle = (Fraction(ceiling) + Fraction(math.nextafter(ceiling, math.inf))) / 2
    room = math.floor(middle * Fraction(2) ** shift) - sum(least.tolist()) - reserve
    weight = np.where(within, whole - np.repeat(least, classes.lengths), 0)
    resource = _resource(weight, min(room, HEADROOM - 1))
    resource.weight[~within] = HEADROOM
    return resource


def _resource(weight: Ints, room: int) -> Resource:
    """Both divided by the common divisor of the weights."""
    divisor = int(np.gcd.reduce(weight)) or 1
    return Resource(weight // divisor, room // divisor)
