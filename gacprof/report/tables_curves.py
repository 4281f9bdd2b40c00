"""What the papers' tables ask of a map: the curve that fits best, or a note on what is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gacprof.cliffmap import CliffMap, MapLookupError, detect
from gacprof.cliffmap.schema import Curve
from gacprof.cliffmap.selection import best
from gacprof.core.points import Flag
from gacprof.kernels import Kernel, attach

PAPER_SUITE = "paper"

PAPER_ATTENTION = {"batch": 4, "heads": 32, "q_len": 2048}
"""The shape of the papers' attention tables (A.2, B.1, B.5)."""


def find(
    cliff_map: CliffMap,
    operator: str,
    axis: str,
    fixed: Mapping[str, int] | None = None,
    flags: Mapping[str, Flag] | None = None,
) -> Curve | None:
    """The curve at the paper's own shape, else the map's plainest one over that axis.

    ``flags`` are required. None where the map has no such axis.
    """
    for wanted in (fixed or {}, {}):
        try:
            return cliff_map.curve(operator, axis, None, flags, **wanted)
        except MapLookupError:
            continue
    return None


def of_regime(
    cliff_map: CliffMap,
    operator: str,
    axis: str,
    fixed: Mapping[str, int],
    dtype: str | None = None,
) -> Curve | None:
    """The curve at the paper's own shape, else the plainest one of its regime: over the same
    axis, and at one token (M = 1) only if the paper's is. None where the map has none."""
    exact = cliff_map.select(operator, axis, dtype, None, **fixed)
    tokens = fixed.get("M")
    alike = [
        curve
        for curve in cliff_map.select(operator, axis, dtype)
        if tokens is None or (curve.fixed.get("M") == 1) == (tokens == 1)
    ]
    return best(exact) or best(alike)


def lacking(what: str, operator: str, axis: str, flags: Mapping[str, Flag] | None = None) -> str:
    """The note for a missing row: ``what`` the map does not hold, and the suite that gives it."""
    suite = giving(operator, axis, flags)
    if suite is None:
        return f"this map does not hold {what}, and no shipped suite sweeps it"
    return f"this map does not hold {what}: the suite '{suite}' gives it (gacprof sweep {suite})"


def giving(operator: str, axis: str, flags: Mapping[str, Flag] | None = None) -> str | None:
    """The suite that sweeps this axis of the operator under these flags: the papers' own, else
    another that ships; None where none does."""
    from gacprof.operators import OPERATORS
    from gacprof.sweeping.suite import load_suite, shipped_suites

    if operator not in OPERATORS:
        return None
    for name in sorted(shipped_suites(), key=lambda name: (name != PAPER_SUITE, name)):
        for sweep in load_suite(name).sweep:
            if (sweep.operator, sweep.axis) != (operator, axis):
                continue
            offered = {key: _listed(value) for key, value in sweep.flags.items()}
            if all(value in offered.get(key, [value]) for key, value in (flags or {}).items()):
                return name
    return None


def _listed(value: Flag | list[Flag]) -> list[Flag]:
    return value if isinstance(value, list) else [value]


def condition(cliff_map: CliffMap, curve: Curve) -> str:
    """Where the numbers of a table come from, as its note."""
    fixed = ", ".join(f"{name} = {size}" for name, size in curve.fixed.items())
    file = cliff_map.file
    return f"{file.device.name} ({file.provenance.kind}), {curve.dtype}, {fixed}"


def latencies(curve: Curve) -> dict[int, float]:
    """Dim → median in µs."""
    return dict(zip(curve.points.d, curve.points.median_us, strict=True))


def penalties(curve: Curve) -> dict[int, float]:
    """Dim → penalty as a share."""
    return dict(zip(curve.points.d, detect.penalty(curve.points.median_us), strict=True))


def main_kernels(curve: Curve, dims: Sequence[int]) -> list[Kernel]:
    """The main kernel at each of these dims, where the map recorded kernels."""
    if not curve.points.kernels:
        return []
    at = dict(zip(curve.points.d, curve.points.kernels, strict=True))
    names = [curve.kernels[i] for d in dims if (i := at.get(d)) is not None]
    groups = [attach(kernels) for kernels in names]
    return [max(g, key=lambda group: group.main.role != "unknown").main for g in groups if g]
