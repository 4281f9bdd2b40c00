"""The knapsack: input as a user gives it, checked, in exact integers; and what comes back.

:class:`Classes` is the input, flat. :class:`Knapsack` is what is solved: costs are counted from
each class's minimum and divided by their greatest common divisor, so that a resource's ``room``
is what the budget leaves above the minima.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gacprof.core.errors import SolverError

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Weights = Ints | Floats

LARGEST = 2.0**960
"""Sums of values stay below this, so that sums of products do not overflow."""

HEADROOM = 2**61
"""Sums of shifted costs stay below this, so that no int64 sum or difference overflows."""


class InfeasibleBudget(SolverError):  # noqa: N818 (it is a budget that is infeasible)
    """No choice fits. ``resource`` is what is short, ``nearest`` the least that would do.

    ``resource`` is ``"budget"`` or ``"limit"``. Where each would do alone but not both
    together, it is ``"budget"``, and ``nearest`` the least budget within the given limit.
    """

    def __init__(self, message: str, resource: str, nearest: int | float) -> None:
        super().__init__(message)
        self.resource = resource
        self.nearest = nearest


@dataclass(frozen=True)
class Solution:
    """One candidate per class, and what is certain about it.

    ``choice[i]`` is the place of class i's candidate in its own list. ``cost`` is exact;
    ``value`` and ``latency`` are correctly rounded sums (``math.fsum``). ``bound``: no choice
    within the budget has a greater ``value``.
    ``proved``: the search was exhaustive, so that no choice is better than this one.
    ``interrupted``: Ctrl-C ended it early.
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
    if (lengths == 0).any():
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
    if flat.ndim != 1 or kind not in "iufO":
        raise SolverError("costs must be integers")
    if kind == "f":
        if not (np.isfinite(flat) & (flat == np.rint(flat))).all():
            raise SolverError("costs must be integers: scale them to a whole unit")
        if np.abs(flat).max() > 2.0**53:
            raise SolverError("costs beyond 2^53 must be given as integers, not floats")
    elif kind != "i":
        if not all(isinstance(one, (int, np.integer)) for one in flat.tolist()):
            raise SolverError("costs must be integers")
        if max(map(abs, flat.tolist())) > np.iinfo(np.int64).max:
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
    whole = kind != "O" or all(isinstance(one, Real) for one in flat)
    if flat.ndim != 1 or kind not in "iufO" or not whole:
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


@dataclass(frozen=True)
class Knapsack:
    """Maximise Σ values, Σ weights[k] within room[k] for every resource k, one item per class.

    int64 weights are exact and start at 0 in every class; float weights are summed with
    ``math.fsum``. ``items`` maps back to :class:`Classes`: those that could not fit even beside
    all minima are left out.
    """

    values: Floats
    weights: tuple[Weights, ...]
    room: tuple[int | float, ...]
    starts: Ints
    owner: NDArray[np.int32]
    items: Ints

    @property
    def classes(self) -> int:
        return len(self.starts)

    def greatest(self, amounts: Weights) -> Ints:
        """The first item of each class with the greatest amount."""
        top = np.maximum.reduceat(amounts, self.starts)
        at = np.flatnonzero(amounts == top[self.owner])
        return at[np.searchsorted(self.owner[at], np.arange(self.classes))]

    def value(self, choice: Ints) -> float:
        return math.fsum(self.values[choice].tolist())

    def slack(self, choice: Ints) -> Floats:
        """Room left by a choice, correctly rounded."""
        return np.array(
            [
                float(int(room) - int(weight[choice].sum()))
                if weight.dtype == np.int64
                else math.fsum([room, *(-weight[choice]).tolist()])
                for weight, room in zip(self.weights, self.room, strict=True)
            ]
        )

    def fits(self, choice: Ints) -> bool:
        return all(
            _total(weight[choice]) <= room
            for weight, room in zip(self.weights, self.room, strict=True)
        )

    def reduced_costs(self, multipliers: Floats, items: Ints | slice, base: Ints) -> Floats:
        """multipliers·Δweight − Δvalue of each item against its ``base``."""
        reduced = self.values[base] - self.values[items]
        for price, weight in zip(multipliers, self.weights, strict=True):
            if price:
                reduced += price * (weight[items] - weight[base])
        return reduced


def _total(weights: Weights) -> int | float:
    """Exact for integers, else rounded once."""
    numbers = weights.tolist()
    return sum(numbers) if weights.dtype == np.int64 else math.fsum(numbers)


@dataclass(frozen=True)
class Resource:
    """Weights and the room for them; ``spare`` is what a single item may take beyond the least."""

    weight: Weights
    room: int | float
    spare: int | float


def knapsack(values: Floats, resources: Sequence[Resource], classes: Classes) -> Knapsack | None:
    """None if a class has no candidate that fits beside the minima of the others."""
    fits = np.ones(len(values), dtype=bool)
    for one in resources:
        least = np.minimum.reduceat(one.weight, classes.starts)
        fits &= one.weight <= np.repeat(least, classes.lengths) + one.spare
    items = np.flatnonzero(fits)
    owner = classes.owner[items]
    ends = np.searchsorted(owner, np.arange(len(classes.lengths) + 1))
    starts = ends[:-1]
    if (np.diff(ends) == 0).any():
        return None
    weights, rooms = [], []
    for one in resources:
        weight = one.weight[items]
        most = _total(np.maximum.reduceat(weight, starts))
        if weight.dtype == np.int64 and most >= HEADROOM:
            raise SolverError("the costs' spread is beyond 64 bits: count in a larger unit")
        weights.append(weight)
        rooms.append(min(one.room, most))
    return Knapsack(values[items], tuple(weights), tuple(rooms), starts, owner, items)


def cost_resource(classes: Classes, budget: int) -> Resource:
    """Costs above the class minima in their common divisor, and the room for them."""
    least = np.minimum.reduceat(classes.costs, classes.starts)
    floor = sum(least.tolist())
    if budget < floor:
        raise InfeasibleBudget(
            f"budget {budget} is {floor - budget} short: the least of every class costs {floor}",
            "budget",
            floor,
        )
    weight = classes.costs - np.repeat(least, classes.lengths)
    divisor = _common_divisor(weight)
    if divisor > 1:
        weight //= divisor
    room = (budget - floor) // divisor
    return Resource(weight, room, min(room, np.iinfo(np.int64).max))


def _common_divisor(weight: Ints) -> int:
    """1 if all are zero; most inputs settle it in a few chunks."""
    divisor = 0
    for at in range(0, len(weight), 1 << 16):
        divisor = int(np.gcd(divisor, np.gcd.reduce(weight[at : at + (1 << 16)])))
        if divisor == 1:
            break
    return divisor or 1


def latency_resource(classes: Classes, limit: float) -> Resource:
    """Latencies as they are."""
    times = classes.latency
    assert times is not None
    floor = math.fsum(np.minimum.reduceat(times, classes.starts).tolist())
    if limit < floor:
        raise InfeasibleBudget(
            f"limit {limit!r} is short: the fastest of every class takes {floor!r}", "limit", floor
        )
    return Resource(times, limit, (limit - floor) + 2.0**-48 * limit)
