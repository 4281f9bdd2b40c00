"""What a question to a map must be made of, said in a line where it is not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Integral
from typing import Any

from gacprof.cliffmap.schema import Curve
from gacprof.core.errors import MapError


def check_sizes(sizes: Mapping[str, Any]) -> None:
    """Dims are whole numbers from 1. Raises :class:`MapError` naming the one that is not."""
    for name, size in sizes.items():
        if type(size) is not int or size < 1:
            check_whole(name, size, 1)


def check_whole(name: str, value: Any, least: int) -> None:
    """Raises :class:`MapError` for what is no integer (numpy's are) or less than ``least``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise MapError(f"{name} must be a whole number, {least} or more, not {value!r}")


def check_window(window: Any) -> None:
    """A half-width, or (first, last) in this order. Raises :class:`MapError`."""
    if not isinstance(window, tuple | list):
        check_whole("window", window, 0)
        return
    if len(window) != 2:
        raise MapError(f"window must be a half-width or (first, last), not {window!r}")
    for end in window:
        check_whole("window", end, 0)
    if window[0] > window[1]:
        raise MapError(f"window is empty: its first dim {window[0]} is above its last {window[1]}")


def check_names(curves: Iterable[Curve], operator: str, axis: str | None) -> None:
    """An operator or axis that neither the map nor gacprof knows is a mistake in the question:
    no sweep would answer it. Raises :class:`MapError` with the names that there are."""
    from gacprof.operators import OPERATORS

    axes = {curve.axis for curve in curves if curve.operator == operator}
    known = OPERATORS.get(operator)
    if known is None and not axes:
        held = sorted({curve.operator for curve in curves})
        raise MapError(f"unknown operator '{operator}': the map has {', '.join(held) or 'none'}")
    axes |= set(known.dims if known else ())
    if axis is not None and axis not in axes:
        raise MapError(f"'{axis}' is no dim of {operator}: it has {', '.join(sorted(axes))}")
