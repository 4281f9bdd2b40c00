"""Make a user's function an operator, whose cliffs are measured as any other's.

Put the function at the top level of a module or of a script whose work stands under ``if __name__
== "__main__"``: worker processes import it from there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import update_wrapper
from itertools import chain
from typing import TYPE_CHECKING, Any

from gacprof.core.errors import MeasurementError
from gacprof.core.points import Point
from gacprof.operators.base import OPERATORS, Operand, Operator, Role, register

if TYPE_CHECKING:
    import torch

Shape = tuple[str | int, ...]  # names of dims, and numbers where a size never changes


@dataclass(eq=False, kw_only=True)
class OwnOperator(Operator):
    """A user's function. Calling it calls the function."""

    function: Callable[..., Any]
    shapes: Mapping[str, Shape]
    name: str
    dtypes: tuple[str, ...]
    weights: Sequence[str]
    count_flops: Callable[..., int]

    def __post_init__(self) -> None:
        sizes = chain.from_iterable(self.shapes.values())
        self.dims = tuple(dict.fromkeys(size for size in sizes if isinstance(size, str)))
        update_wrapper(self, self.function)

    def __call__(self, *operands: Any, **options: Any) -> Any:
        return self.function(*operands, **options)

    def flops(self, point: Point) -> int:
        return self.count_flops(**point.dims)

    def operands(self, point: Point) -> tuple[Operand, ...]:
        operands = []
        for name, shape in self.shapes.items():
            sizes = tuple(s if isinstance(s, int) else point.dims[s] for s in shape)
            role: Role = "weight" if name in self.weights else "input"
            operands.append(Operand(role, sizes, point.dtype))
        return tuple(operands)

    def call(self, point: Point, device: torch.device) -> Callable[..., Any]:
        return self.function


def operator(
    *,
    name: str = "",
    dtypes: Sequence[str] = ("float32", "bfloat16", "float16"),
    weights: Sequence[str] = (),
    flops: Callable[..., int] = lambda **dims: 0,
    **shapes: Shape,
) -> Callable[[Callable[..., Any]], OwnOperator]:
    """Make a function of tensors an operator that suites know by its name.

    Parameters
    ----------
    name
        The function's own by default. Defined again, the operator replaces itself.
    dtypes
        Those that the operands may have.
    weights
        Operands that a model reads once a pass: read from memory where the cache is cold.
    flops
        Counts a call's floating-point operations from its dims, by name.
    shapes
        Each operand's shape by names of dims, in the order of the function's parameters:
        ``x=("M", "K")``.

    Raises
    ------
    MeasurementError
        For the name of an operator of gacprof's.

    Examples
    --------
    >>> @gacprof.operator(x=("M", "K"), w=("N", "K"))
    ... def gelu_linear(x, w):
    ...     return torch.nn.functional.gelu(x @ w.T)
    >>> gelu_linear.dims  # those that a suite names
    ('M', 'K', 'N')
    """

    def decorate(function: Callable[..., Any]) -> OwnOperator:
        own_name = name or function.__name__
        if not isinstance(OPERATORS.get(own_name), OwnOperator | None):
            raise MeasurementError(f"'{own_name}' is an operator of gacprof's: rename yours")
        own_operator = OwnOperator(
            function=function,
            shapes=shapes,
            name=own_name,
            dtypes=tuple(dtypes),
            weights=weights,
            count_flops=flops,
        )
        register(own_operator)
        return own_operator

    return decorate
