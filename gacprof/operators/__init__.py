"""What is measured: one class an operator, one line of registration each."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points

from gacprof.core.errors import SuiteError
from gacprof.core.points import Flag, Point
from gacprof.operators.attention import Attention
from gacprof.operators.base import Operator, canonical, set_precision
from gacprof.operators.linear import Linear
from gacprof.operators.products import Bmm, Experts, Quantised
from gacprof.operators.stream import Stream

OPERATORS: dict[str, Operator] = {
    operator.name: operator
    for operator in (
        Linear(),
        Attention(),
        Bmm(),
        Experts(),
        Quantised(),
        Stream("row_sum"),
        Stream("row_copy"),
    )
}


PLUGINS = "gacprof.operators"
"""The entry points by which other packages bring operators: each an :class:`Operator`, or a module
that defines some with :func:`gacprof.operator`."""


@cache
def _load_plugins() -> None:
    for entry in entry_points(group=PLUGINS):
        try:
            found = entry.load()
        except Exception as error:  # another package's code may raise anything
            raise SuiteError(
                f"the operators of '{entry.value}' cannot be loaded: {error}"
            ) from None
        made = found() if isinstance(found, type) else found
        if isinstance(made, Operator):
            OPERATORS.setdefault(made.name, made)


def get(name: str) -> Operator:
    """The operator of that name, other packages' too. Raises :class:`SuiteError` listing those
    there are."""
    if name not in OPERATORS:
        _load_plugins()
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
