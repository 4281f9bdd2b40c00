"""What is measured: one class an operator, one line of registration each."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

from gacprof.core.errors import SuiteError
from gacprof.core.plugins import brought, instance
from gacprof.core.points import Flag, Point
from gacprof.operators.attention import Attention
from gacprof.operators.base import Operator, canonical, set_precision
from gacprof.operators.products import Bmm, Experts, LinearProduct, QuantisedProduct
from gacprof.operators.stream import Stream

OPERATORS: dict[str, Operator] = {
    operator.name: operator
    for operator in (
        LinearProduct(),
        Attention(),
        Bmm(),
        Experts(),
        QuantisedProduct(),
        Stream("row_sum"),
        Stream("row_copy"),
    )
}


def _take_in() -> None:
    """Operators of other packages: each an :class:`Operator`, or a module that defines some with
    :func:`gacprof.operator`."""
    found = brought("operators", lambda one: instance(one, Operator, ModuleType))
    for made in found.values():
        if isinstance(made, Operator):
            OPERATORS.setdefault(made.name, made)


def get(name: str) -> Operator:
    """The operator of that name, other packages' too. Raises :class:`SuiteError` listing those
    there are."""
    if name not in OPERATORS:
        _take_in()
    try:
        return OPERATORS[name]
    except KeyError:
        raise SuiteError(
            f"unknown operator '{name}' (there are {', '.join(sorted(OPERATORS))})"
        ) from None


def point(
    operator: str,
    dims: Mapping[str, int],
    dtype: str,
    flags: Mapping[str, Flag] | None = None,
) -> Point:
    """A valid point, as :func:`canonical` spells it. Raises :class:`SuiteError`."""
    kind = get(operator)
    made = canonical(kind, dims, dtype, flags or {})
    problem = kind.problem(made)
    if problem:
        raise SuiteError(f"{made}: {problem}")
    return made


__all__ = ["OPERATORS", "Operator", "get", "point", "set_precision"]
