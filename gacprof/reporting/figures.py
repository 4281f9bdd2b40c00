"""A curve as a picture: the staircase, its frontier, what is safe.

Each function returns a matplotlib ``Figure``, which :func:`gacprof.reporting.figures_style.save`
writes as SVG and PNG, or draws in text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from gacprof.cliffmap import CliffMap, detect
from gacprof.cliffmap.detect import label
from gacprof.cliffmap.schema import Curve
from gacprof.cliffmap.source import Use
from gacprof.core.errors import ReportError
from gacprof.core.formatting import percent
from gacprof.core.points import Flag
from gacprof.reporting.figures_style import (
    HEADROOM,
    INK,
    MARKERS,
    OKABE_ITO,
    dim_ticks,
    latency_unit,
    legend,
    new_figure,
    title,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from gacprof.rules.table import RuleTable

WIDE_GAP = 4
"""Neighbours further apart than this many median distances are not joined by a line."""

DENSE = 3
"""Most of the dims within this part of the axis fill the picture alone."""

LOW = 0.1
"""Labels of points below this share of the highest latency go above them, off the axis."""

MOST_LABELS = 14
"""Frontier dims closer than half their share of the axis are not all labelled."""


HEIGHT = 16
"""Lines of a plot in a terminal, its axis among them."""

BESIDE_ASKED = 40
"""Dims shown on either side of one that was asked for."""

_STYLE = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class View:
    """A curve as a picture shows it, for the sizes ``asked``."""

    curve: Curve
    asked: Sequence[int] = ()

    @property
    def shown(self) -> tuple[int, int]:
        """The first and the last measured dim of the picture: those around ``asked``, up to the
        next frontier above; else the stretch that holds most dims where it is a small part of the
        axis; else all."""
        dims = self.curve.points.d
        within = [d for d in self.asked if dims[0] <= d <= dims[-1]]
        if within:
            margin = max(8, (max(within) - min(within)) // 4)
            above = next((d for d in self.curve.frontier if d >= max(within)), dims[-1])
            low, high = min(within) - margin, max(above, max(within) + margin)
        else:
            longest = max(runs(dims, dims), key=len)
            low, high = longest[0], longest[-1]
            if 2 * len(longest) < len(dims) or DENSE * (high - low) > dims[-1] - dims[0]:
                return dims[0], dims[-1]
        shown = [d for d in dims if low <= d <= high]
        return (shown[0], shown[-1]) if len(shown) > 1 else (dims[0], dims[-1])


def staircase(
    cliff_map: CliffMap, curve: Curve, width: float = 10.0, asked: Sequence[int] = ()
) -> Figure:
    """Latency over the dim, with the frontier and the tolerance drawn in.

    The dims ``asked`` for are marked, and the axis is cut to them and what they could be padded to.
    """
    figure, (axes,) = new_figure(width, 4.6)
    draw_staircase(axes, curve, asked)
    title(axes, f"{curve.operator}: latency over {curve.axis}", _conditions(cliff_map, curve))
    legend(axes)
    return figure


TIER_SPANS = {("linear", "K"): (64, 128), ("attention", "head_dim"): (64, 256)}
"""Sizes that show the tiers of an axis: two periods of the coarsest multiple, and all head_dims."""

OF_VERDICT = {"safe": 2, "undecided": 0, "misaligned": 1}
"""Colour and marker of a verdict, by their place in ``OKABE_ITO`` and ``MARKERS``."""


def tier_picture(
    table: RuleTable, operator: str, axis: str, dtype: str, width: float = 10.0
) -> Figure:
    """The tier of each size by the rules of a GPU, the best lowest: a scale without times."""
    judged = table.judge_jointly([Use(operator, {}, axis, dtype)], *TIER_SPANS[operator, axis])
    figure, (axes,) = new_figure(width, 2.6)
    for verdict, place in OF_VERDICT.items():
        of = [(one.d, one.tier) for one in judged if one.verdict == verdict]
        if of:
            axes.plot(
                *zip(*of, strict=True), linestyle="none", marker=MARKERS[place], markersize=4.5,
                color=OKABE_ITO[place], label=verdict,
            )  # fmt: skip
    last = max(one.tier or 1 for one in judged)
    axes.set_yticks(
        range(1, last + 1), ["best" if i == 1 else f"tier {i}" for i in range(1, last + 1)]
    )
    axes.set_ylim(0.5, last + 0.5)
    axes.set_xlabel(axis, color=INK)
    dim_ticks(axes, judged[0].d, judged[-1].d)
    title(axes, f"{operator} {axis}: tiers", f"{table.environment.name} · {dtype} · by rules")
    legend(axes)
    return figure


def side_by_side(
    maps: Sequence[CliffMap],
    operator: str,
    axis: str,
    dtype: str | None = None,
    flags: Mapping[str, Flag] | None = None,
    **fixed: int,
) -> Figure:
    """The same axis on several devices, one above the other, over the same dims.

    Raises :class:`MapLookupError` where a map has no such axis, :class:`ReportError` for no maps.
    """
    if not maps:
        raise ReportError("a comparison of no maps: name two")
    curves = [m.curve(operator, axis, dtype, flags, **fixed) for m in maps]
    figure, panels = new_figure(10.0, 0.6 + 3.4 * len(maps), rows=len(maps), sharex=True)
    devices = {m.file.device.name for m in maps}
    for panel, cliff_map, curve in zip(panels, maps, curves, strict=True):
        draw_staircase(panel, curve)
        heading = cliff_map.file.device.name if len(devices) == len(maps) else cliff_map.name
        title(panel, heading, _conditions(cliff_map, curve))
        if panel is not panels[-1]:
            panel.set_xlabel("")
        legend(panel)
    return figure


def draw_staircase(axes: Axes, curve: Curve, asked: Sequence[int] = ()) -> None:
    """Draw one curve into existing axes."""
    first, last = View(curve, asked).shown
    within = [us for d, us in curve.latencies.items() if first <= d <= last]
    factor, unit = latency_unit(within)
    _draw_classes(axes, curve, factor)
    _draw_undecided(axes, curve, factor)
    _draw_frontier(axes, curve, factor, (first, last))
    here = sorted({d for d in asked if first <= d <= last})
    if here:
        axes.plot(
            here, [0] * len(here), linestyle="none", marker="^", markersize=7, color=INK,
            clip_on=False, zorder=6, label="in this model",
        )  # fmt: skip
    axes.set_xlabel(curve.axis, color=INK)
    axes.set_ylabel(f"latency [{unit}]", color=INK)
    axes.set_ylim(0, HEADROOM * factor * max(within))
    right = 0.07 if last in curve.frontier else 0.02  # room for the last one's label
    axes.set_xlim(first - 0.02 * (last - first), last + right * (last - first))
    dim_ticks(axes, first, last)


def _draw_classes(axes: Axes, curve: Curve, factor: float) -> None:
    """Each residue class in its colour and shape; its line breaks where a tier ends
    and across a wide gap."""
    size = 4.5 if len(curve.points.d) < 150 else 3.0 if len(curve.points.d) < 600 else 2.0
    latency = curve.latencies
    for i, (modulus, remainders) in enumerate(curve.classes):
        colour, marker = OKABE_ITO[i % len(OKABE_ITO)], MARKERS[i % len(MARKERS)]
        members = [d for d in latency if d % modulus in remainders]
        tiers = [t for t in curve.tiers if (t.modulus, t.remainders) == (modulus, remainders)]
        for tier in tiers:
            within = [d for d in members if tier.first <= d <= tier.last]
            for run in runs(within, members):
                axes.plot(
                    run, [latency[d] * factor for d in run],
                    color=colour, linewidth=0.8, alpha=0.45, zorder=2,
                )  # fmt: skip
        axes.plot(
            members, [latency[d] * factor for d in members], linestyle="none", marker=marker,
            markersize=size, color=colour, markeredgewidth=0, alpha=0.9, zorder=3,
            label=label(curve.axis, modulus, remainders) if curve.period else "measured",
        )  # fmt: skip


def runs(within: Sequence[int], members: Sequence[int]) -> list[list[int]]:
    """Dims without a wide gap between them, as :data:`WIDE_GAP` has it for all ``members``: a
    line across a gap would look as if it had been measured."""
    gaps = [b - a for a, b in pairwise(members)]
    widest = WIDE_GAP * median(gaps) if gaps else 0
    found: list[list[int]] = []
    for d in within:
        if not found or d - found[-1][-1] > widest:
            found.append([])
        found[-1].append(d)
    return found


def _draw_undecided(axes: Axes, curve: Curve, factor: float) -> None:
    """The intervals of dims that are neither safe nor misaligned."""
    p, undecided = curve.points, set(curve.undecided)
    bars = [
        (d, factor * us, factor * (us - (low or us)), factor * ((high or us) - us))
        for d, us, low, high in zip(p.d, p.latency_us, p.low_us, p.high_us, strict=True)
        if d in undecided
    ]
    if not bars:
        return
    dims, middle, below, above = zip(*bars, strict=True)
    axes.errorbar(
        dims, middle, yerr=[below, above], fmt="none", ecolor=INK, elinewidth=0.8, capsize=2.0,
        alpha=0.6, zorder=2.9, label="undecided (95 %)",
    )  # fmt: skip


def _draw_frontier(axes: Axes, curve: Curve, factor: float, shown: tuple[int, int]) -> None:
    """The envelope of comparable dims, the tolerance above it, and the frontier's dims."""
    sure = sum(size <= curve.coverage.last_comparable for size in curve.points.d)
    if not sure:
        return
    d = curve.points.d[:sure]
    envelope = [t * factor for t in detect.envelope(curve.points.latency_us)[:sure]]
    width = curve.tolerance
    axes.step(d, envelope, where="pre", color=INK, linewidth=1.1, zorder=2.6, label="envelope")
    axes.fill_between(
        d, envelope, [t * (1 + width) for t in envelope], step="pre", color=INK, alpha=0.22,
        linewidth=0, zorder=2.5, label=f"safe: {percent(width, decimals=0)} above the envelope",
    )  # fmt: skip
    at = dict(zip(d, envelope, strict=True))
    axes.plot(
        curve.frontier, [at[x] for x in curve.frontier], linestyle="none", marker="o",
        markersize=8, markerfacecolor="none", markeredgecolor=INK, markeredgewidth=1.4, zorder=4,
        label="frontier",
    )  # fmt: skip
    within = [x for x in curve.frontier if shown[0] <= x <= shown[1]]
    for x in _spread(within, (shown[1] - shown[0]) / MOST_LABELS / 2):
        place: dict[str, Any] = {"xytext": (0, -6), "ha": "center", "va": "top"}
        if x == shown[1]:  # to the right, where no point is
            place = {"xytext": (8, 0), "ha": "left", "va": "center"}
        elif at[x] < LOW * factor * max(us for y, us in curve.latencies.items() if y <= shown[1]):
            place = {"xytext": (0, 6), "ha": "center", "va": "bottom"}
        axes.annotate(
            str(x), (x, at[x]), textcoords="offset points", fontsize=9, color=INK,
            fontweight="bold", zorder=5, **place,
        )  # fmt: skip


def _spread(dims: Sequence[int], least: float) -> list[int]:
    """Those dims that stand ``least`` apart, the widest first: labels must not overlap."""
    kept: list[int] = []
    for d in reversed(dims):
        if not kept or kept[-1] - d >= least:
            kept.append(d)
    return kept[::-1]


def _conditions(cliff_map: CliffMap, curve: Curve) -> str:
    fixed = ", ".join(f"{name}={size}" for name, size in curve.fixed.items())
    device, provenance = cliff_map.file.device.name, cliff_map.file.provenance.kind
    return f"{device} ({provenance}) · {curve.dtype} · {fixed} · {curve.timer}"


def staircase_text(curve: Curve, width: int, asked: int | None = None) -> str:
    """Latency (µs) over the dim, the frontier as ●; with ``asked`` only around it, itself as ✕.

    For terminals, pipes and logs: plain text of at most ``width`` columns, without colours.
    """
    import plotext

    near = (
        (0, curve.points.d[-1]) if asked is None else (asked - BESIDE_ASKED, asked + BESIDE_ASKED)
    )
    shown = [(d, us) for d, us in curve.latencies.items() if near[0] <= d <= near[1]]
    if len(shown) < 2:
        return ""
    dims = [d for d, _ in shown]
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plotsize(width, HEIGHT)
    for modulus, remainders in curve.classes:  # a line through all would zigzag
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
