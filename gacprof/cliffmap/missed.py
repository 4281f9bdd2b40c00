"""Which of the settings asked for no curve has: the first that leaves none, in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from gacprof.cliffmap.schema import Curve
from gacprof.core.points import Flag

_Setting = tuple[str, Any, Callable[[Curve], Any]]

SHOWN = 6


def first_missed(
    curves: Iterable[Curve],
    operator: str,
    axis: str | None = None,
    dtype: str | None = None,
    flags: Mapping[str, Flag] | None = None,
    fixed: Mapping[str, int] | None = None,
) -> str | None:
    """``none has dtype = int8 (there are float16, float32)``; None where some curve fits all.

    Settings are looked at in the order of the parameters; the values listed are those of the
    curves that fit all the settings before.
    """
    left = list(curves)
    for name, wanted, of in _settings(operator, axis, dtype, flags or {}, fixed or {}):
        fitting = [curve for curve in left if of(curve) == wanted]
        if not fitting:
            held = {v for curve in left if (v := of(curve)) is not None}
            there = [
                str(v) for v in sorted(held, key=lambda v: (v if type(v) is int else 0, str(v)))
            ]
            more = f" and {len(there) - SHOWN} more" if len(there) > SHOWN else ""
            told = f"there are {', '.join(there[:SHOWN])}{more}" if there else "they have none"
            return f"none has {name} = {wanted} ({told})"
        left = fitting
    return None


def _settings(
    operator: str,
    axis: str | None,
    dtype: str | None,
    flags: Mapping[str, Flag],
    fixed: Mapping[str, int],
) -> Iterator[_Setting]:
    yield "operator", operator, lambda curve: curve.operator
    if axis is not None:
        yield "axis", axis, lambda curve: curve.axis
    if dtype is not None:
        yield "dtype", dtype, lambda curve: curve.dtype
    for name, value in flags.items():
        yield f"flag {name}", value, partial(_flag, name)
    for name, size in fixed.items():
        yield name, size, partial(_size, name)


def _flag(name: str, curve: Curve) -> Flag | None:
    return curve.flags.get(name)


def _size(name: str, curve: Curve) -> int | None:
    return curve.fixed.get(name)
