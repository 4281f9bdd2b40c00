"""What the papers' tables ask of a map: the curve that fits best, or a note on what is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from gacprof.cliffmap import CliffMap, MapMiss
from gacprof.cliffmap.schema import Curve
from gacprof.kernels import Kernel, attach
from gacprof.points import Flag

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
        except MapMiss:
            continue
    return None


def exactly(
    cliff_map: CliffMap, operator: str, axis: str, fixed: Mapping[str, int]
) -> Curve | None:
    """The curve at these fixed dims, or None."""
    try:
        return cliff_map.curve(operator, axis, None, None, **fixed)
    except MapMiss:
        return None


def lacking(what: str, operator: str = "attention", suite: str = "paper") -> str:
    """The note for a missing row. ``operator`` may be one that this version cannot sweep."""
    from gacprof.operators import OPERATORS

    if operator not in OPERATORS:
        return f"this map does not hold {what}, and this version has no operator '{operator}'"
    return f"this map does not hold {what}: the suite '{suite}' gives it (gacprof sweep {suite})"


def condition(cliff_map: CliffMap, curve: Curve) -> str:
    """Where the numbers of a table come from, as its note."""
    fixed = ", ".join(f"{name} = {size}" for name, size in curve.fixed.items())
    file = cliff_map.file
    return f"{file.device.name} ({file.provenance.kind}), {curve.dtype}, {fixed}"


def latencies(curve: Curve) -> dict[int, float]:
    """Dim → median in µs."""
    return dict(zip(curve.points.d, curve.points.median_us, strict=True))


def main_kernels(curve: Curve, dims: Sequence[int]) -> list[Kernel]:
    """The main kernel at each of these dims, where the map recorded kernels."""
    if not curve.points.kernels:
        return []
    at = dict(zip(curve.points.d, curve.points.kernels, strict=True))
    names = [curve.kernels[i] for d in dims if (i := at.get(d)) is not None]
    groups = [attach(kernels) for kernels in names]
    return [max(g, key=lambda group: group.main.role != "unknown").main for g in groups if g]


def class_level(curve: Curve, remainders: Sequence[int]) -> float:
    """Median latency, in µs, of a residue class of the curve's period."""
    assert curve.period is not None
    return median(t for d, t in latencies(curve).items() if d % curve.period.modulus in remainders)
