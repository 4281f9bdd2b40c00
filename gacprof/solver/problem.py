"""Candidate sets as flat arrays, and the knapsack over them in exact integers.

:class:`Classes` is the input as given, checked. :class:`Knapsack` is what is solved: costs
are counted from each class's minimum and divided by their common measure, so that a
resource's ``room`` is what the budget leaves above the minima.
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
from gacprof.solver.solution import InfeasibleBudget

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

LARGEST = 2.0**960
"""Sums of values stay below this, so that sums of products do not overflow."""

Weights = Ints | Floats

HEADROOM = 2**61
"""Sums of shifted costs stay below this, so that no int64 sum or difference overflows."""


@dataclass(frozen=True)
class Classes:
    """m candidates of n classes, class after class. ``column`` is set for padded input."""

    costs: Ints
    values: Floats
    latency: Floats | None
    lengths: Ints
    column: Ints | None = None

    @cached_property
    def starts(self) -> Ints:
        return np.concatenate([[0], np.cumsum(self.lengths)[:-1]])

    @cached_property
    def owner(self) -> NDArray[np.int32]:
        return np.repeat(np.arange(len(self.lengths), dtype=np.int32), self.lengths)

    def place(self, item: int) -> str:
        """Where an item stands, for messages."""
        owner = int(self.owner[item])
        at = item - self.starts[owner] if self.column is None else self.column[item]
        return f"class {owner}, candidate {int(at)}"

    def choice(self, items: Ints) -> tuple[int, ...]:
        at = items - self.starts if self.column is None else self.column[items]
        return tuple(at.tolist())


def read(costs: Any, values: Any, latency: Any = None, mask: Any = None) -> Classes:
    """Check and flatten; a masked array of costs is its own mask.

    Raises :class:`SolverError` naming the first thing wrong.
    """
    if mask is None and isinstance(costs, np.ma.MaskedArray):
        mask = ~np.ma.getmaskarray(costs)
    flat_costs, lengths, column = _flatten("costs", costs, mask)
    flat_values, value_lengths, _ = _flatten("values", values, mask)
    _same_shape("values", value_lengths, lengths)
    if (lengths == 0).any():
        raise SolverError(f"class {int(np.argmin(lengths))} has no candidate: drop it or fill it")
    classes = Classes(_integers(flat_costs), _reals("values", flat_values), None, lengths, column)
    if latency is not None:
        flat_latency, latency_lengths, _ = _flatten("latency", latency, mask)
        _same_shape("latency", latency_lengths, lengths)
        times = _reals("latency", flat_latency)
        classes = Classes(classes.costs, classes.values, times, lengths, column)
        _refuse(classes, "latency", times, ~np.isfinite(times), "not a finite number")
        _refuse(classes, "latency", times, times < 0, "negative")
        if len(lengths) * float(times.max()) > LARGEST:
            raise SolverError("the latencies' sum is near the end of a double's range")
    _refuse(classes, "value", classes.values, ~np.isfinite(classes.values), "not a finite number")
    if len(lengths) * float(np.abs(classes.values).max()) > LARGEST:
        raise SolverError("the values' sum is near the end of a double's range: scale them down")
    _refuse(classes, "cost", classes.costs, classes.costs < 0, "negative")
    return classes


def _flatten(name: str, data: Any, mask: Any) -> tuple[NDArray[Any], Ints, Ints | None]:
    if isinstance(data, np.ma.MaskedArray):
        data = data.data
    if isinstance(data, np.ndarray) and data.ndim == 2:
        if mask is None:
            return data.ravel(), np.full(data.shape[0], data.shape[1]), None
        present = np.asarray(mask, dtype=bool)
        if present.shape != data.shape:
            raise SolverError(f"the mask is {present.shape}, {name} is {data.shape}: same shape")
        return data[present], present.sum(axis=1), np.nonzero(present)[1]
    if mask is not None:
        raise SolverError(f"a mask goes with 2-D arrays; {name} is not one")
    try:
        lengths = np.fromiter(map(len, data), dtype=np.int64)
        if not len(lengths):
            raise SolverError(f"{name} hold no class at all")
        if isinstance(data[0], np.ndarray):
            return np.concatenate(data), lengths, None
        numbers = list(chain.from_iterable(data))
        flat = np.array(numbers)
        if flat.dtype.kind == "f" and all(isinstance(one, (int, np.integer)) for one in numbers):
            flat = np.array(numbers, dtype=object)  # integers that NumPy took for doubles
    except (TypeError, ValueError, KeyError, OverflowError):
        raise SolverError(f"{name} must be one sequence of numbers per class") from None
    return flat, lengths, None


def _same_shape(name: str, lengths: Ints, expected: Ints) -> None:
    if len(lengths) != len(expected):
        raise SolverError(f"{name} has {len(lengths)} classes, costs have {len(expected)}")
    if (lengths != expected).any():
        i = int(np.argmax(lengths != expected))
        raise SolverError(
            f"class {i} has {int(expected[i])} costs but {int(lengths[i])} {name}: one each"
        )


def _integers(flat: NDArray[Any]) -> Ints:
    if flat.ndim != 1 or flat.dtype.kind not in "iufO":
        raise SolverError("costs must be integers")
    if flat.dtype.kind == "i":
        return flat.astype(np.int64, copy=False)
    if flat.dtype.kind == "f":
        if not (np.isfinite(flat) & (flat == np.rint(flat))).all():
            raise SolverError("costs must be integers: scale them to a whole unit")
        if flat.size and np.abs(flat).max() > 2.0**53:
            raise SolverError("costs beyond 2^53 must be given as integers, not floats")
        return flat.astype(np.int64)
    if flat.dtype.kind == "O" and not all(isinstance(one, (int, np.integer)) for one in flat):
        raise SolverError("costs must be integers")
    if flat.size and max(flat.tolist()) > np.iinfo(np.int64).max:
        raise SolverError("a cost is beyond 64 bits: count in a larger unit")
    if flat.size and min(flat.tolist()) < 0:
        raise SolverError("a cost is negative")
    return flat.astype(np.int64)


def _reals(name: str, flat: NDArray[Any]) -> Floats:
    if flat.ndim != 1 or flat.dtype.kind not in "iufO":
        raise SolverError(f"{name} must be numbers")
    if flat.dtype.kind == "O" and not all(isinstance(one, Real) for one in flat):
        raise SolverError(f"{name} must be numbers")
    try:
        return flat.astype(np.float64, copy=False)
    except (TypeError, ValueError, OverflowError):
        raise SolverError(f"{name} must be numbers within the range of a double") from None


def _refuse(classes: Classes, name: str, flat: NDArray[Any], bad: NDArray[Any], why: str) -> None:
    if bad.any():
        item = int(np.argmax(bad))
        raise SolverError(f"{classes.place(item)}: {name} {flat[item]} is {why}")


class UnsolvableError(SolverError):
    """Some class has no candidate that fits beside the minima of the others."""


@dataclass(frozen=True)
class Knapsack:
    """Maximise Σ values, Σ weights[k] within room[k] for every resource k, one item per class.

    int64 weights are exact and start at 0 in every class; float weights are summed with
    ``math.fsum``. ``items`` maps back to :class:`Classes`; items that could not fit even beside
    all minima are left out.
    """

    values: Floats
    weights: tuple[Weights, ...]
    room: tuple[int | float, ...]
    starts: Ints
    owner: NDArray[np.int32]
    items: Ints | None = None

    @property
    def classes(self) -> int:
        return len(self.starts)

    def original(self, items: Ints) -> Ints:
        return items if self.items is None else self.items[items]

    def inverse(self, originals: Ints) -> Ints:
        return originals if self.items is None else np.searchsorted(self.items, originals)

    def most_valued(self) -> Ints:
        """The first candidate of the greatest value in each class."""
        top = np.maximum.reduceat(self.values, self.starts)
        at = np.flatnonzero(self.values == top[self.owner])
        return at[np.searchsorted(self.owner[at], np.arange(self.classes))]

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
            total(weight[choice]) <= room
            for weight, room in zip(self.weights, self.room, strict=True)
        )


def total(weights: Weights) -> int | float:
    """Exact for integers (those of a :class:`Knapsack` cannot overflow), else rounded once."""
    return int(weights.sum()) if weights.dtype == np.int64 else math.fsum(weights.tolist())


@dataclass(frozen=True)
class Resource:
    """Weights and the room for them; ``spare`` is what a single item may take beyond the least."""

    weight: Weights
    room: int | float
    spare: int | float


def knapsack(values: Floats, resources: Sequence[Resource], classes: Classes) -> Knapsack:
    """Raises :class:`UnsolvableError`."""
    fits = np.ones(len(values), dtype=bool)
    for one in resources:
        least = np.minimum.reduceat(one.weight, classes.starts)
        fits &= one.weight <= np.repeat(least, classes.lengths) + one.spare
    starts, owner, items = classes.starts, classes.owner, None
    weights = tuple(one.weight for one in resources)
    if not fits.all():
        items = np.flatnonzero(fits)
        values, owner = values[items], owner[items]
        weights = tuple(weight[items] for weight in weights)
        ends = np.searchsorted(owner, np.arange(len(starts) + 1))
        if (np.diff(ends) == 0).any():
            raise UnsolvableError
        starts = ends[:-1]
    rooms: list[int | float] = []
    for weight, one in zip(weights, resources, strict=True):
        largest = np.maximum.reduceat(weight, starts).tolist()
        if weight.dtype == np.int64 and sum(largest) >= HEADROOM:
            raise SolverError("the costs' spread is beyond 64 bits: count in a larger unit")
        rooms.append(
            min(one.room, sum(largest) if weight.dtype == np.int64 else math.fsum(largest))
        )
    return Knapsack(values, weights, tuple(rooms), starts, owner, items)


def cost_resource(classes: Classes, budget: int) -> Resource:
    """Costs above the class minima in their common measure, and the room for them."""
    least = np.minimum.reduceat(classes.costs, classes.starts)
    floor = sum(least.tolist())
    if budget < floor:
        raise InfeasibleBudget(
            f"budget {budget} is {floor - budget} short: the least of every class costs {floor}",
            "budget",
            floor,
        )
    weight = classes.costs - np.repeat(least, classes.lengths)
    measure = _measure(weight)
    if measure > 1:
        weight //= measure
    room = (budget - floor) // measure
    return Resource(weight, room, min(room, np.iinfo(np.int64).max))


def _measure(weight: Ints) -> int:
    """The greatest common divisor, 1 if all are zero; most inputs settle it in a few chunks."""
    measure = 0
    for at in range(0, len(weight), 1 << 16):
        measure = int(np.gcd(measure, np.gcd.reduce(weight[at : at + (1 << 16)])))
        if measure == 1:
            break
    return measure or 1


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
