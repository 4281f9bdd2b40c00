"""A curve's staircase as text, for terminals, pipes and logs."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gacprof.cliffmap.schema import Curve
from gacprof.report.figures import classes_of

HEIGHT = 16
"""Lines of a plot, its axis among them."""

AROUND = 40
"""Dims shown on either side of one that was asked for."""

_STYLE = re.compile(r"\x1b\[[0-9;]*m")


def staircase_text(curve: Curve, width: int, asked: int | None = None) -> str:
    """Latency (µs) over the dim, the frontier as ●; with ``asked`` only around it, itself as ✕.

    Plain text of at most ``width`` columns, without colours.
    """
    import plotext

    near = (0, curve.points.d[-1]) if asked is None else (asked - AROUND, asked + AROUND)
    shown = [
        (d, latency)
        for d, latency in zip(curve.points.d, curve.points.median_us, strict=True)
        if near[0] <= d <= near[1]
    ]
    if len(shown) < 2:
        return ""
    dims = [d for d, _ in shown]
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plotsize(width, HEIGHT)
    for modulus, remainders in classes_of(curve):  # a line through all would zigzag
        members = [(d, t) for d, t in shown if d % modulus in remainders]
        if members:
            plotext.plot(*zip(*members, strict=True), marker="braille")
    plotext.xticks(_ticks(dims))
    for marker, marked in (("●", curve.frontier), ("✕", [asked])):
        some = [(d, t) for d, t in shown if d in marked]
        if some:
            plotext.scatter(*zip(*some, strict=True), marker=marker)
    legend = "● frontier" if asked is None else f"● frontier  ✕ {asked}"
    lines = _STYLE.sub("", plotext.build()).rstrip().splitlines()
    return "\n".join([f"µs over {curve.axis}   {legend}", *(line.rstrip() for line in lines)])


def _ticks(dims: Sequence[int]) -> list[int]:
    """Five dims that were measured, evenly spread: a plot's round numbers may be none of them."""
    last = len(dims) - 1
    return sorted({dims[round(i * last / 4)] for i in range(5)})
