"""The knapsack: candidates as a user gives them, checked; the integers that are solved; and what
comes out.

All resources are exact integers: weights are counted from each class's minimum and divided by
their greatest common divisor, and ``room`` is what the budget or limit leaves above the minima. A
*choice* is an array with one candidate per class: its place in the flat arrays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import chain
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gacprof.core.errors import SolverError

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

LARGEST = 2.0**960
"""Sums of values stay below this, so that sums of products do not overflow."""

HEADROOM = 2**61
"""Sums of weights stay below this, so that no int64 sum or difference overflows."""


class InfeasibleBudget(SolverError):  # noqa: N818 (it is a budget that is infeasible)
    """No choice fits. ``resource``, ``"budget"`` or ``"limit"``, is what is short, ``nearest`` the
    least that would do. Where each would do alone but not both together, it is ``"budget"``, and
    ``nearest`` the least budget within the given limit.
    """

    def __init__(self, message: str, resource: str, nearest: int | float) -> None:
        super().__init__(message)
        self.resource, self.nearest = resource, nearest


@dataclass(frozen=True)
class Solution:
    """One candidate per class, and what is certain about it.

    ``choice[i]`` is the place of class i's candidate in its own list. ``cost`` is exact;
    ``value`` and ``latency`` are correctly rounded sums (``math.fsum``). No choice within the
    budget has a greater value than ``bound``. ``proved``: the search was exhaustive, so that no
    choice is better than this one. ``interrupted``: Ctrl-C ended it early.
    """

    choice: tuple[int, ...]
    value: float
    cost: int
    bound: float
    proved: bool
    latency: float | None = None
    notes: tuple[str, ...] = ()
    interrupted: bool = False

    @property
    def gap(self) -> float:
        """How much better a choice could at most be: ``bound − value``, never negative."""
        return self.bound - self.value


@dataclass(frozen=True)
class Classes:
    """The candidates of n classes, class after class; ``lengths`` has one entry per class."""

    costs: Ints
    values: Floats
    latency: Floats | None
    lengths: Ints

    @cached_property
    def starts(self) -> Ints:
        return np.cumsum(self.lengths) - self.lengths

    @cached_property
    def owner(self) -> NDArray[np.int32]:
        return np.repeat(np.arange(len(self.lengths), dtype=np.int32), self.lengths)

    def choice(self, items: Ints) -> tuple[int, ...]:
        return tuple((items - self.starts).tolist())


def read(costs: Any, values: Any, latency: Any = None) -> Classes:
    """Check and flatten. Raises :class:`SolverError` naming the first thing wrong."""
    flat, lengths = _flatten("costs", costs)
    if not lengths.all():
        raise SolverError(f"class {int(np.argmin(lengths))} has no candidate: drop it or fill it")
    times = None if latency is None else _reals("latency", latency, lengths)
    classes = Classes(_integers(flat), _reals("values", values, lengths), times, lengths)
    for name, numbers in (("latency", times), ("value", classes.values)):
        if numbers is not None:
            _refuse(classes, name, numbers, ~np.isfinite(numbers), "not a finite number")
            if len(lengths) * float(np.abs(numbers).max()) > LARGEST:
                raise SolverError(f"the {name}s' sum is near the end of a double's range")
    if times is not None:
        _refuse(classes, "latency", times, times < 0, "negative")
    _refuse(classes, "cost", classes.costs, classes.costs < 0, "negative")
    return classes


def _flatten(name: str, data: Any) -> tuple[NDArray[Any], Ints]:
    """The numbers of all classes in one row, and how many each class has."""
    if isinstance(data, np.ndarray) and data.ndim == 2:
        return data.ravel(), np.full(data.shape[0], data.shape[1])
    try:
        lengths = np.fromiter(map(len, data), dtype=np.int64)
        if not len(lengths):
            raise SolverError(f"{name} hold no class at all")
        if isinstance(data[0], np.ndarray):
            return np.concatenate(data), lengths
        numbers = list(chain.from_iterable(data))
        flat = np.array(numbers)
        if flat.dtype.kind == "f" and all(isinstance(one, (int, np.integer)) for one in numbers):
            flat = np.array(numbers, dtype=object)  # integers that NumPy took for doubles
    except (TypeError, ValueError, KeyError, OverflowError):
        raise SolverError(f"{name} must be one sequence of numbers per class") from None
    return flat, lengths


def _integers(flat: NDArray[Any]) -> Ints:
    kind = flat.dtype.kind
    objects = kind == "O" and all(isinstance(one, (int, np.integer)) for one in flat.flat)
    if flat.ndim != 1 or not (kind in "iuf" or objects):
        raise SolverError("costs must be integers")
    if kind == "f":
        if not (np.isfinite(flat) & (flat == np.rint(flat))).all():
            raise SolverError("costs must be integers: scale them to a whole unit")
        if np.abs(flat).max() > 2.0**53:
            raise SolverError("costs beyond 2^53 must be given as integers, not floats")
    if kind in "uO" and max(map(abs, flat.tolist())) > np.iinfo(np.int64).max:
        raise SolverError("a cost is beyond 64 bits: count in a larger unit")
    return flat.astype(np.int64, copy=False)


def _reals(name: str, data: Any, lengths: Ints) -> Floats:
    """Doubles, as many in each class as there are costs."""
    flat, own = _flatten(name, data)
    if len(own) != len(lengths):
        raise SolverError(f"{name} has {len(own)} classes, costs have {len(lengths)}")
    if (own != lengths).any():
        i = int(np.argmax(own != lengths))
        raise SolverError(f"class {i} has {lengths[i]} costs but {own[i]} {name}: one each")
    kind = flat.dtype.kind
    real = kind in "iuf" or (kind == "O" and all(isinstance(one, Real) for one in flat))
    if flat.ndim != 1 or not real:
        raise SolverError(f"{name} must be numbers")
    try:
        return flat.astype(np.float64, copy=False)
    except (TypeError, ValueError, OverflowError):
        raise SolverError(f"{name} must be numbers within the range of a double") from None


def _refuse(classes: Classes, name: str, flat: NDArray[Any], bad: NDArray[Any], why: str) -> None:
    if bad.any():
        item = int(np.argmax(bad))
        owner = classes.owner[item]
        place = f"class {owner}, candidate {item - classes.starts[owner]}"
        raise SolverError(f"{place}: {name} {flat[item]} is {why}")


class Resource(NamedTuple):
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
        self.knapsack, self.ids, self.owner = knapsack, ids, knapsack.owner[ids]
        self.starts = np.searchsorted(self.owner, np.arange(self.owner[-1] + 1))
        self.classes = len(self.starts)
        values = knapsack.values[ids]
        self.values = values - values[self.starts][self.owner]
        self.weights = [weight[ids].astype(np.float64) for weight in knapsack.weights]
        self.widest = np.array([weight.max() for weight in self.weights])

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
