"""Which curve answers a question: by operator, axis, dtype, flags and the nearest fixed dims; and
what is said where none does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf, log2
from numbers import Integral
from typing import Any

from gacprof.cliffmap.schema import Curve
from gacprof.core.dtypes import full_name
from gacprof.core.errors import MapError
from gacprof.core.formatting import listed
from gacprof.core.points import Flag
from gacprof.operators import OPERATORS

SHOWN = 6
"""Values that a message lists before it counts the rest."""

AROUND, RANGE = 16, "64:256"
"""What a message offers to sweep: dims on either side of the missing one; else these."""


class MapLookupError(MapError):
    """The map lacks what was asked; the message ends with the command that measures it.

    The attributes are what was asked, ``axis`` None for a single point, and the ``command``.
    """

    def __init__(
        self,
        reason: str,
        operator: str,
        dims: Mapping[str, int],
        dtype: str | None,
        flags: Mapping[str, Flag] | None = None,
        axis: str | None = None,
        command: str = "",
    ) -> None:
        self.operator, self.dims, self.dtype = operator, dict(dims), dtype
        self.flags, self.axis = dict(flags or {}), axis
        self.command = command or self._sweep()
        super().__init__(f"{reason}; to measure it: {self.command}")

    def _sweep(self) -> str:
        """The command that measures the curve through what is missing."""
        known = OPERATORS.get(self.operator)
        there = [name for name in (known.dims if known else ()) if name in self.dims]
        axis = self.axis or (there[-1] if there else "AXIS")
        d = self.dims.get(axis)
        dims = ",".join(f"{n}={size}" for n, size in sorted(self.dims.items()) if n != axis)
        parts = [
            f"--op {self.operator} --axis {axis}",
            f"--range {RANGE if d is None else f'{max(1, d - AROUND)}:{d + AROUND}'}",
            f"--fixed {dims}" if dims else "",
            f"--dtype {self.dtype}" if self.dtype else "",
            *(f"--flag {name}={str(value).lower()}" for name, value in sorted(self.flags.items())),
        ]
        return f"gacprof sweep {' '.join(filter(None, parts))}"


def flag_distance(
    operator: str, flags: Mapping[str, Flag], asked: Mapping[str, Flag]
) -> tuple[int, int] | None:
    """How far a curve's flags are from those asked for; None where they contradict them.

    A flag that was left out is best at the operator's default (its first allowed value:
    ``bias`` False, ``cache`` warm, ``causal`` False, ``mask`` none), then at anything else;
    among equals the one with fewer flags is nearer.
    """
    if any(flags.get(name) != value for name, value in asked.items()):
        return None
    known = OPERATORS.get(operator)
    default = {name: allowed[0] for name, allowed in known.flags.items()} if known else {}
    strange = sum(
        name not in asked and default.get(name, value) != value for name, value in flags.items()
    )
    return strange, len(flags)


def complete_dims(operator: str, dims: Mapping[str, int]) -> dict[str, int]:
    """The dims with the operator's defaults filled in (``kv_len`` as ``q_len``)."""
    full = dict(dims)
    known = OPERATORS.get(operator)
    for name, default in (known.default_dims if known else {}).items():
        size = full.get(default) if isinstance(default, str) else default
        if name not in full and size is not None:
            full[name] = size
    return full


def dims_distance(a: Mapping[str, int], b: Mapping[str, int]) -> float:
    """Σ |log2 ratio| over the dims of ``b``; infinite where ``a`` lacks one of them."""
    return sum(abs(log2(a[name] / size)) if name in a else inf for name, size in b.items())


def matching(
    curves: Iterable[Curve],
    operator: str,
    axis: str | None = None,
    dtype: str | None = None,
    flags: Mapping[str, Flag] | None = None,
    fixed: Mapping[str, int] | None = None,
) -> list[Curve]:
    """The curves that contradict nothing of what is given, those nearest the defaults first."""
    found, dtype = [], plain_dtype(dtype)
    for curve in curves:
        if (
            curve.operator == operator
            and axis in (None, curve.axis)
            and dtype in (None, curve.dtype)
            and all(curve.fixed.get(name) == size for name, size in (fixed or {}).items())
        ):
            distance = flag_distance(operator, curve.flags, flags or {})
            if distance is not None:
                found.append((distance, curve.identity, curve))
    return [curve for _, _, curve in sorted(found, key=lambda entry: entry[:2])]


def plain_dtype(dtype: Any) -> Any:
    """``torch.float16`` as ``float16``; None and what is no dtype stay."""
    return dtype if dtype is None else full_name(dtype)


def refuse_ambiguity(curves: Sequence[Curve], near: int | None) -> None:
    """Raises :class:`MapError` where curves of several dtypes or other dims answer for ``near``
    (None: for any dim): to take one of them without a word would hide what the others say."""
    covering = [c for c in curves if near is None or c.points.d[0] <= near <= c.points.d[-1]]
    at = "" if near is None else f" near {near}"
    settings = [{"dtype": c.dtype, **c.fixed} for c in covering]
    for name in dict.fromkeys(name for held in settings for name in held):
        values = sorted({held.get(name) for held in settings}, key=lambda v: (str(type(v)), v))
        if len(values) > 1:
            option = f"--dtype {values[0]}" if name == "dtype" else f"--fixed {name}={values[0]}"
            raise MapError(
                f"the map has curves of {covering[0].operator} over {covering[0].axis}{at} "
                f"for several {name}: {listed(values, SHOWN)}; say which ({option})"
            )


def best(curves: list[Curve], near: int | None = None) -> Curve | None:
    """The curve that covers ``near``; among equals the default flags, then the most dims."""

    def order(curve: Curve) -> tuple[bool, tuple[int, int], int, str]:
        covers = near is None or curve.points.d[0] <= near <= curve.points.d[-1]
        flags = flag_distance(curve.operator, curve.flags, {}) or (0, 0)
        return not covers, flags, -len(curve.points.d), curve.identity

    return min(curves, key=order, default=None)


def why_none(
    curves: Iterable[Curve],
    operator: str,
    axis: str | None = None,
    dtype: str | None = None,
    flags: Mapping[str, Flag] | None = None,
    fixed: Mapping[str, int] | None = None,
) -> str | None:
    """``none has dtype = int8 (there are float16, float32)``: the first setting, in the order of
    the parameters, that no curve has which has all before it. None where some curve has all."""
    wanted = _settings(operator, axis, dtype, flags or {}, fixed or {})
    left = [_settings(c.operator, c.axis, c.dtype, c.flags, c.fixed) for c in curves]
    for name, value in wanted.items():
        if value is None:
            continue
        held = {settings[name] for settings in left if name in settings}
        left = [settings for settings in left if settings.get(name) == value]
        if not left:
            there = sorted(held, key=lambda v: (v if type(v) is int else 0, str(v)))
            values = f"there are {listed(there, SHOWN)}" if there else "they have none"
            return f"none has {name} = {value} ({values})"
    return None


def _settings(
    operator: str,
    axis: str | None,
    dtype: str | None,
    flags: Mapping[str, Flag],
    fixed: Mapping[str, int],
) -> dict[str, Any]:
    named = {f"flag {name}": value for name, value in flags.items()}
    return {"operator": operator, "axis": axis, "dtype": dtype, **named, **fixed}


def check_names(curves: Iterable[Curve], operator: str, axis: str | None) -> None:
    """An operator or axis that neither the map nor gacprof knows is a mistake in the question:
    no sweep would answer it. Raises :class:`MapError` with the names that there are."""
    axes = {curve.axis for curve in curves if curve.operator == operator}
    known = OPERATORS.get(operator)
    if known is None and not axes:
        held = sorted({curve.operator for curve in curves})
        raise MapError(f"unknown operator '{operator}': the map has {', '.join(held) or 'none'}")
    axes |= set(known.dims if known else ())
    if axis is not None and axis not in axes:
        raise MapError(f"'{axis}' is no dim of {operator}: it has {', '.join(sorted(axes))}")


def check_sizes(sizes: Mapping[str, Any]) -> None:
    """Dims are whole numbers from 1. Raises :class:`MapError` naming the one that is not."""
    for name, size in sizes.items():
        check_whole(name, size, 1)


def check_whole(name: str, value: Any, least: int) -> None:
    """Raises :class:`MapError` for what is no integer (numpy's are) or less than ``least``."""
    if type(value) is int and value >= least:  # first: every look-up comes by here
        return
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise MapError(f"{name} must be a whole number, {least} or more, not {value!r}")


def whole(name: str, value: Any, least: int) -> int:
    """The number, also of an array or a tensor without dims. Raises as :func:`check_whole`."""
    found = value.item() if getattr(value, "ndim", None) == 0 else value
    check_whole(name, found, least)
    return int(found)


def span_of(window: Any, near: int) -> tuple[int, int]:
    """The first and last dim of a window: a half-width, or these two in this order. Raises
    :class:`MapError`."""
    if not isinstance(window, tuple | list):
        check_whole("window", window, 0)
        return near - window, near + window
    if len(window) != 2:
        raise MapError(f"window must be a half-width or (first, last), not {window!r}")
    for end in window:
        check_whole("window", end, 0)
    if window[0] > window[1]:
        raise MapError(f"window is empty: its first dim {window[0]} is above its last {window[1]}")
    return window[0], window[1]
