"""An operator: its name, dims and flags, the work of a call, its operands, and the call itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Literal

from gacprof.core.dtypes import ITEMSIZE
from gacprof.core.errors import MeasurementError
from gacprof.core.points import MAX_DIM, Flag, Point

if TYPE_CHECKING:
    import torch

Role = Literal["input", "weight", "output"]

CACHE: tuple[Flag, ...] = ("warm", "cold")  # are weights in the cache when a call reads them?


@dataclass(frozen=True)
class Operand:
    """A contiguous tensor of random numbers that a call takes: an ``input`` was just written, a
    ``weight`` (keys and values too) is what a model reads once a pass, an ``output`` is written by
    the call."""

    role: Role
    shape: tuple[int, ...]
    dtype: str
    offset: int = 0  # elements past an aligned address

    @property
    def nbytes(self) -> int:
        return (prod(self.shape) + self.offset) * ITEMSIZE[self.dtype]


class Operator(ABC):
    """One kind of work whose speed depends on its dims."""

    name: str
    dims: tuple[str, ...]
    default_dims: Mapping[str, int | str] = {}  # of a dim left out: a number, or a dim's name
    flags: Mapping[str, tuple[Flag, ...]] = {"cache": CACHE}  # values, the default first
    dtypes: tuple[str, ...] = ("float32", "tf32", "bfloat16", "float16")

    @abstractmethod
    def flops(self, point: Point) -> int:
        """Return the floating-point operations of one call."""

    @abstractmethod
    def operands(self, point: Point) -> tuple[Operand, ...]:
        """Return the tensors that :meth:`call` takes, in order."""

    @abstractmethod
    def call(self, point: Point, device: torch.device) -> Callable[..., Any]:
        """Return the function of the operands that is timed."""

    def result_bytes(self, point: Point) -> int:
        """Return the bytes of the result, where it is no operand."""
        return 0

    def bytes_moved(self, point: Point) -> int:
        """Return the bytes that one call must at least read and write: operands and result once."""
        return sum(operand.nbytes for operand in self.operands(point)) + self.result_bytes(point)

    def problem(self, point: Point) -> str:
        """Say in one line why the operator cannot take the point; empty if it can."""
        return ""


OPERATORS: dict[str, Operator] = {}  # by name; importing gacprof.operators fills it


def register(operator: Operator) -> None:
    """Make an operator known by its name."""
    OPERATORS[operator.name] = operator


def get(name: str) -> Operator:
    """Return the operator of that name. Raises :class:`MeasurementError` for an unknown one."""
    if name not in OPERATORS:
        names = ", ".join(OPERATORS)
        raise MeasurementError(f"unknown operator '{name}': use one of {names}, or --import yours")
    return OPERATORS[name]


def canonical(point: Point) -> Point:
    """Return the point with every dim and flag of its operator spelt out, so that equal work is
    equal. Raises :class:`MeasurementError` for what the operator does not take."""
    operator = get(point.operator)
    names = {"dtype": [point.dtype], "dim": point.dims, "flag": point.flags}
    allowed_names = {"dtype": operator.dtypes, "dim": operator.dims, "flag": operator.flags}
    for kind, choices in allowed_names.items():
        for name in {*names[kind]}.difference(choices):
            raise MeasurementError(
                f"operator '{operator.name}' has no {kind} '{name}' (it has {', '.join(choices)})"
            )
    dims: dict[str, int] = {}
    for name in operator.dims:
        size = point.dims.get(name, operator.default_dims.get(name))
        if isinstance(size, str):
            size = dims[size]
        if not isinstance(size, int) or not 0 < size <= MAX_DIM:
            raise MeasurementError(
                f"dim '{name}' of operator '{operator.name}' is {size}: "
                f"give it a size from 1 to {MAX_DIM}"
            )
        dims[name] = size
    flags = {name: point.flags.get(name, values[0]) for name, values in operator.flags.items()}
    complete = Point(point.operator, dims, point.dtype, flags)
    for name, value in flags.items():
        allowed = operator.flags[name]
        # As text, since True == 1: a bias of 1 would have another key than one of True.
        if repr(value) not in map(repr, allowed):
            words = ", ".join(map(repr, allowed))
            raise MeasurementError(f"{complete}: flag '{name}' is {value!r}, not one of {words}")
    problem = operator.problem(complete)
    if problem:
        raise MeasurementError(f"{complete}: {problem}")
    return complete
