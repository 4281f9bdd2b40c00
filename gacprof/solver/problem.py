"""What goes in and what comes out: candidates as a user gives them, checked; the solution."""

from __future__ import annotations

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
