"""The knapsack as a user gives it, checked; and what comes out."""

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

LARGEST = 2.0**960
"""Sums of values stay below this, so that sums of products do not overflow."""

HEADROOM = 2**61
"""Sums of weights above their minima stay below this, so that no int64 sum overflows."""


class InfeasibleBudget(SolverError):  # noqa: N818 (it is a budget that is infeasible)
    """No choice fits. ``resource`` is the place of the one that is short, ``nearest`` the least
    that would do. Where each would do alone but not all together, it is the first, and ``nearest``
    the least of it within the other limits. ``enough`` says whether a choice fits once this one
    limit is raised to ``nearest``; if not, others cannot be kept either."""

    def __init__(self, message: str, resource: int, nearest: float, *, enough: bool = True) -> None:
        super().__init__(message)
        self.resource, self.nearest, self.enough = resource, nearest, enough


@dataclass(frozen=True)
class Solution:
    """One candidate per class, and what is certain about it.

    ``choice[i]`` is the place of class i's candidate in its own list; ``takes`` what it takes of
    each resource. No choice within the limits has a value greater than ``bound``, but for the
    rounding of doubles (some 1e-12 of it). ``proved``: no choice is better, to that rounding.
    ``interrupted``: Ctrl-C ended the search early.
    """

    choice: tuple[int, ...]
    value: float
    takes: tuple[float, ...]
    bound: float
    proved: bool
    notes: tuple[str, ...] = ()
    interrupted: bool = False

    @property
    def gap(self) -> float:
        """How much better a choice could at most be: ``bound − value``, never negative."""
        return self.bound - self.value


@dataclass(frozen=True)
class Resource:
    """What every candidate takes, as integers or doubles, and the most that a choice may take."""

    name: str
    takes: Ints | Floats
    most: float

    @property
    def whole(self) -> bool:
        return self.takes.dtype.kind == "i"

    def of(self, items: Ints) -> float:
        """What a choice takes: exactly, or correctly rounded."""
        taken = self.takes[items].tolist()
        return sum(taken) if self.whole else math.fsum(taken)


@dataclass(frozen=True)
class Classes:
    """The candidates of n classes, class after class; ``lengths`` has one entry per class. A choice
    is an array with one candidate per class: its place in the flat arrays."""

    values: Floats
    resources: tuple[Resource, ...]
    lengths: Ints

    @cached_property
    def starts(self) -> Ints:
        return np.cumsum(self.lengths) - self.lengths

    @cached_property
    def owner(self) -> Ints:
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    def least(self, amounts: NDArray[Any]) -> NDArray[Any]:
        """Of each class, repeated for all of its candidates."""
        return np.repeat(np.minimum.reduceat(amounts, self.starts), self.lengths)

    def fits(self, items: Ints) -> bool:
        return all(resource.of(items) <= resource.most for resource in self.resources)

    def value(self, items: Ints) -> float:
        return math.fsum(self.values[items].tolist())

    def solution(self, items: Ints, bound: float, proved: bool, **more: Any) -> Solution:
        """Of equal candidates each class takes the first that takes least."""
        items = self._first_of_ties(items)
        value = self.value(items)
        return Solution(
            choice=tuple((items - self.starts).tolist()),
            value=value,
            takes=tuple(resource.of(items) for resource in self.resources),
            bound=value if proved else max(value, bound),
            proved=proved,
            **more,
        )

    def _first_of_ties(self, items: Ints) -> Ints:
        """Each class at its first candidate of the best value that takes no more of anything."""
        fits = np.ones(len(self.values), dtype=bool)
        for each in self.resources:
            fits &= each.takes <= np.repeat(each.takes[items], self.lengths)
        value = np.where(fits, self.values, -np.inf)
        best = np.flatnonzero(
            value == np.repeat(np.maximum.reduceat(value, self.starts), self.lengths)
        )
        keys = [each.takes[best] for each in reversed(self.resources)]
        best = best[np.lexsort([*keys, self.owner[best]])]
        return best[np.searchsorted(self.owner[best], np.arange(len(items)))]


def read(values: Any, resources: Sequence[tuple[Any, Any]]) -> Classes:
    """Check and flatten. Raises :class:`SolverError` naming the first thing wrong."""
    pairs = isinstance(resources, list | tuple) and all(
        isinstance(each, list | tuple) and len(each) == 2 for each in resources
    )
    if not pairs:
        raise SolverError("limits are pairs: what every candidate takes, and the most of it")
    flat, lengths = _flatten("values", values)
    if not lengths.all():
        raise SolverError(f"class {int(np.argmin(lengths))} has no candidate: drop it or fill it")
    worth = _reals("values", flat, lengths, lengths)
    found = []
    for i, (rows, most) in enumerate(resources):
        name = f"resource {i}"
        if not isinstance(most, Real) or math.isnan(most):
            raise SolverError(f"the limit of {name} must be a number, not {most!r}")
        taken, own = _flatten(name, rows)
        takes = _numbers(name, taken, own, lengths)
        found.append(Resource(name, takes, most if isinstance(most, int) else float(most)))
    classes = Classes(worth, tuple(found), lengths)
    for name, numbers in (*((r.name, r.takes) for r in found), ("values", worth)):
        _refuse(classes, name, numbers, ~np.isfinite(numbers), "not a finite number")
        if len(lengths) * float(np.abs(numbers.astype(np.float64)).max()) > LARGEST:
            raise SolverError(f"the sum of the {name} is near the end of a double's range")
        if name != "values":
            _refuse(classes, name, numbers, numbers < 0, "negative")
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


def _numbers(name: str, flat: NDArray[Any], own: Ints, lengths: Ints) -> Ints | Floats:
    """Integers where all are, else doubles."""
    objects = flat.dtype.kind == "O" and all(isinstance(x, (int, np.integer)) for x in flat.flat)
    if flat.dtype.kind not in "iu" and not objects:
        return _reals(name, flat, own, lengths)
    _check_lengths(name, own, lengths)
    if flat.dtype.kind in "uO" and max(map(abs, flat.tolist())) > np.iinfo(np.int64).max:
        raise SolverError(f"one of the {name} is beyond 64 bits: count in a larger unit")
    return flat.astype(np.int64, copy=False)


def _reals(name: str, flat: NDArray[Any], own: Ints, lengths: Ints) -> Floats:
    _check_lengths(name, own, lengths)
    kind = flat.dtype.kind
    real = kind in "iuf" or (kind == "O" and all(isinstance(one, Real) for one in flat))
    if flat.ndim != 1 or not real:
        raise SolverError(f"{name} must be numbers")
    try:
        return flat.astype(np.float64, copy=False)
    except (TypeError, ValueError, OverflowError):
        raise SolverError(f"{name} must be numbers within the range of a double") from None


def _check_lengths(name: str, own: Ints, lengths: Ints) -> None:
    if len(own) != len(lengths):
        raise SolverError(f"{name} has {len(own)} classes, the values have {len(lengths)}")
    if (own != lengths).any():
        i = int(np.argmax(own != lengths))
        raise SolverError(f"class {i} has {lengths[i]} values but {own[i]} {name}: one each")


def _refuse(classes: Classes, name: str, flat: NDArray[Any], bad: NDArray[Any], why: str) -> None:
    if bad.any():
        item = int(np.argmax(bad))
        owner = classes.owner[item]
        place = f"class {owner}, candidate {item - classes.starts[owner]}"
        raise SolverError(f"{place}: {flat[item]} of {name} is {why}")
