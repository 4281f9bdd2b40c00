"""Which curve answers: by operator, axis, dtype, flags and the nearest fixed dims."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf, log2

from gacprof.cliffmap.schema import Curve
from gacprof.core.points import Flag


def flag_distance(
    operator: str, flags: Mapping[str, Flag], asked: Mapping[str, Flag]
) -> tuple[int, int] | None:
    """How far a curve's flags are from those asked for; None where they contradict them.

    A flag that was left out is best at the operator's default (its first allowed value:
    ``bias`` False, ``cache`` warm, ``causal`` False, ``mask`` none), then at anything else;
    among equals fewer flags are plainer.
    """
    for name, value in asked.items():
        if name not in flags or flags[name] != value:
            return None
    default = default_flags(operator)
    strange = sum(
        name in default and default[name] != value
        for name, value in flags.items()
        if name not in asked
    )
    return strange, len(flags)


def default_flags(operator: str) -> dict[str, Flag]:
    """The operator's own defaults; none for an operator that only a published map knows."""
    from gacprof.operators import OPERATORS

    known = OPERATORS.get(operator)
    return {name: allowed[0] for name, allowed in known.flags.items()} if known else {}


def complete_dims(operator: str, dims: Mapping[str, int]) -> dict[str, int]:
    """The dims with the operator's defaults filled in (``kv_len`` as ``q_len``)."""
    from gacprof.operators import OPERATORS

    full = dict(dims)
    known = OPERATORS.get(operator)
    for name, default in (known.default_dims if known else {}).items():
        if name not in full:
            size = full.get(default) if isinstance(default, str) else default
            if size is not None:
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
    found = []
    for curve in curves:
        distance = flag_distance(operator, curve.flags, flags or {})
        if (
            curve.operator == operator
            and axis in (None, curve.axis)
            and dtype in (None, curve.dtype)
            and distance is not None
            and all(curve.fixed.get(name) == size for name, size in (fixed or {}).items())
        ):
            found.append((distance, curve.identity, curve))
    return [curve for _, _, curve in sorted(found, key=lambda entry: entry[:2])]


def best(curves: list[Curve], near: int | None = None) -> Curve | None:
    """The curve that covers ``near``; among equals the plainest flags, then the most dims."""

    def order(curve: Curve) -> tuple[bool, tuple[int, int], int, str]:
        covers = near is None or curve.points.d[0] <= near <= curve.points.d[-1]
        flags = flag_distance(curve.operator, curve.flags, {}) or (0, 0)
        return not covers, flags, -len(curve.points.d), curve.identity

    return min(curves, key=order, default=None)


def nearest(curves: list[Curve], fixed: Mapping[str, int]) -> Curve | None:
    """The curve at the nearest fixed dims; among equals the one with the plainest flags."""

    def order(curve: Curve) -> tuple[float, tuple[int, int], str]:
        flags = flag_distance(curve.operator, curve.flags, {}) or (0, 0)
        return dims_distance(curve.fixed, fixed), flags, curve.identity

    return min(curves, key=order, default=None)
