"""Other views of a map: penalty over two dims at once, and figures 5–8 of arXiv 2604.09595."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gacprof.cliffmap import CliffMap
from gacprof.cliffmap.detect import label
from gacprof.cliffmap.schema import Curve
from gacprof.core.errors import ReportError
from gacprof.core.points import BYTES_PER_ELEMENT, Flag
from gacprof.report.figures import classes_of, draw_staircase
from gacprof.report.figures_style import (
    HEADROOM,
    INK,
    MARKERS,
    OKABE_ITO,
    QUIET,
    dim_ticks,
    legend,
    new_figure,
    title,
)
from gacprof.report.tables_curves import lacking, of_regime

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_PENALTY = 1.0
"""Where the colour scale ends: twice the time that padding would need is bad enough."""

LEAST_SCALE = 0.05
"""The colour scale reaches this far at least, so that noise does not look like structure."""

Grid = dict[tuple[int, int], float]


def heat_map(
    cliff_map: CliffMap,
    operator: str = "linear",
    axes: tuple[str, str] = ("K", "N"),
    dtype: str | None = None,
    flags: Mapping[str, Flag] | None = None,
    **fixed: int,
) -> Figure:
    """The penalty of every measured pair: its latency over the least of any pair that is at
    least as large in both dims, minus 1. Pairs that were not measured stay blank.

    Raises :class:`ReportError` where less than half of the grid was measured: two curves that
    cross are no grid.
    """
    latency = _pairs(cliff_map, operator, axes, dtype, flags, fixed)
    across, up = sorted({x for x, _ in latency}), sorted({y for _, y in latency})
    if min(len(across), len(up)) < 2 or 2 * len(latency) < len(across) * len(up):
        raise ReportError(
            f"the map '{cliff_map.name}' holds no grid of {operator} over {axes[0]} and {axes[1]}; "
            f"sweep {axes[0]} at several {axes[1]} (one [[sweep]] with a list in 'dims')"
        )
    penalties = grid_penalty(latency)
    figure, (panel,) = new_figure(7.2, 5.6)
    _draw_heat(figure, panel, penalties, across, up)
    panel.set_xlabel(axes[0], color=INK)
    panel.set_ylabel(axes[1], color=INK)
    at = ", ".join(f"{name}={size}" for name, size in fixed.items())
    title(panel, f"{operator}: penalty over {axes[0]} × {axes[1]}",
          " · ".join(filter(None, [cliff_map.file.device.name, dtype or "", at])))  # fmt: skip
    return figure


def grid_penalty(latency: Grid) -> Grid:
    """latency(x, y) / min over x' ≥ x, y' ≥ y − 1, over the measured pairs."""
    across = sorted({x for x, _ in latency}, reverse=True)
    up = sorted({y for _, y in latency}, reverse=True)
    least: Grid = {}
    for i, x in enumerate(across):
        for j, y in enumerate(up):
            larger = [latency.get((x, y), float("inf"))]
            if i:
                larger.append(least[across[i - 1], y])
            if j:
                larger.append(least[x, up[j - 1]])
            least[x, y] = min(larger)
    return {pair: t / least[pair] - 1 for pair, t in latency.items()}


def _pairs(
    cliff_map: CliffMap,
    operator: str,
    axes: tuple[str, str],
    dtype: str | None,
    flags: Mapping[str, Flag] | None,
    fixed: Mapping[str, int],
) -> Grid:
    """Latencies by (size of axes[0], size of axes[1]), from the curves over either.

    All pairs share flags, dtype and other dims: those of the plainest curve are taken.
    """
    found: Grid = {}
    kept = None
    for swept, other in (axes, axes[::-1]):
        for curve in cliff_map.select(operator, swept, dtype, flags, **fixed):
            if other not in curve.fixed:
                continue
            rest = {name: size for name, size in curve.fixed.items() if name != other}
            settings = curve.dtype, curve.flags, rest
            kept = kept or settings
            if settings != kept:
                continue
            for d, t in zip(curve.points.d, curve.points.median_us, strict=True):
                pair = (d, curve.fixed[other]) if swept == axes[0] else (curve.fixed[other], d)
                found[pair] = t
    return found


def _draw_heat(
    figure: Figure, panel: Axes, penalties: Grid, across: list[int], up: list[int]
) -> None:
    import numpy as np
    from matplotlib import colormaps

    table = np.full((len(up), len(across)), np.nan)
    for (x, y), penalty in penalties.items():
        table[up.index(y), across.index(x)] = penalty
    colours = colormaps["cividis"].with_extremes(bad="#FFFFFF")
    top = min(MOST_PENALTY, max(LEAST_SCALE, float(np.nanmax(table))))
    image = panel.imshow(
        np.ma.masked_invalid(table), origin="lower", aspect="auto", cmap=colours,
        vmin=0, vmax=top, interpolation="nearest",
    )  # fmt: skip
    panel.grid(False)
    for axis, sizes in ((panel.xaxis, across), (panel.yaxis, up)):
        step = -(-len(sizes) // 12)
        axis.set_ticks(range(0, len(sizes), step), [str(size) for size in sizes[::step]])
    panel.tick_params(axis="x", rotation=90 if len(across) > 8 else 0)
    bar = figure.colorbar(
        image, ax=panel, extend="max" if np.nanmax(table) > MOST_PENALTY else "neither"
    )
    bar.set_label("penalty: time that padding would save", color=INK)
    bar.ax.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    bar.ax.tick_params(colors=QUIET, labelsize=9)
    bar.outline.set_visible(False)
    if len(penalties) <= 120:
        _write_values(panel, penalties, across, up, top)


def _write_values(
    panel: Axes, penalties: Grid, across: list[int], up: list[int], top: float
) -> None:
    """The number in each cell, dark on the light half of the scale and light on the dark."""
    for (x, y), penalty in penalties.items():
        panel.annotate(
            f"{penalty:.0%}", (across.index(x), up.index(y)), ha="center", va="center",
            fontsize=8, color="#FFFFFF" if penalty < 0.45 * top else INK,
        )  # fmt: skip


Rate = Callable[[Curve, int, float], float]


def tflops(curve: Curve, d: int, latency_us: float) -> float:
    """2·M·N·K over the latency, in TFLOPS."""
    dims = {**curve.fixed, curve.axis: d}
    return 2 * dims["M"] * dims["N"] * dims["K"] / latency_us / 1e6


def gigabytes(curve: Curve, d: int, latency_us: float) -> float:
    """Bytes of the matrix over the latency, in GB/s."""
    dims = {**curve.fixed, curve.axis: d}
    return BYTES_PER_ELEMENT[curve.dtype] * dims["rows"] * dims["K"] / latency_us / 1e3


@dataclass(frozen=True)
class Panel:
    """One panel: which curve, and how its points are drawn (latency where ``rate`` is None)."""

    heading: str
    operator: str
    axis: str
    fixed: dict[str, int]
    rate: Rate | None = None
    unit: str = ""
    needed: bool = True


FIGURES: dict[int, list[Panel]] = {
    5: [Panel("Attention", "attention", "head_dim", {"batch": 4, "heads": 32, "q_len": 2048})],
    6: [
        Panel("GEMV over K", "linear", "K", {"M": 1, "N": 4096}),
        Panel("GEMV over N", "linear", "N", {"M": 1, "K": 4096}),
    ],
    7: [
        Panel("GEMM over M", "linear", "M", {"N": 2048, "K": 128}),
        Panel("GEMM over N", "linear", "N", {"M": 2048, "K": 128}),
        Panel("GEMM over K", "linear", "K", {"M": 2048, "N": 2048}),
    ],
    8: [
        Panel("GEMM rate over K", "linear", "K", {"M": 512, "N": 4096}, tflops, "TFLOPS"),
        Panel("GEMM rate over N", "linear", "N", {"M": 512, "K": 4096}, tflops, "TFLOPS"),
        Panel("Row sum over K", "row_sum", "K", {"rows": 1024}, gigabytes, "GB/s", needed=False),
    ],
}


def paper_figure(cliff_map: CliffMap, number: int, dtype: str | None = None) -> Figure:
    """Figure 5, 6, 7 or 8 of the paper, from this map's own points.

    A panel is drawn at the paper's shape, else at the map's plainest one of the same regime;
    its heading says which. A panel that the map lacks names the suite that gives it. Raises
    :class:`ReportError` for another number, :class:`MapLookupError` where the map lacks all panels.
    """
    if number not in FIGURES:
        raise ReportError(f"there is no figure {number} to draw (there are 5, 6, 7, 8)")
    curves = [
        (panel, of_regime(cliff_map, panel.operator, panel.axis, panel.fixed, dtype))
        for panel in FIGURES[number]
    ]
    if not any(curve is not None for _, curve in curves):
        first = FIGURES[number][0]
        cliff_map.curve(first.operator, first.axis, dtype, None, **first.fixed)
    curves = [(panel, curve) for panel, curve in curves if curve is not None or panel.needed]
    figure, axes = new_figure(10.0, 0.4 + 3.3 * len(curves), rows=len(curves))
    for at, (panel, curve) in zip(axes, curves, strict=True):
        if curve is None:
            _say_missing(at, panel)
            continue
        _draw_panel(at, panel, curve)
        fixed = ", ".join(f"{name}={size}" for name, size in curve.fixed.items())
        title(at, panel.heading, f"{cliff_map.file.device.name} · {curve.dtype} · {fixed}")
        legend(at)
    return figure


def _say_missing(axes: Axes, panel: Panel) -> None:
    title(axes, panel.heading)
    axes.set_axis_off()
    words = lacking(f"{panel.operator} over {panel.axis} here", panel.operator, panel.axis)
    axes.annotate(words, (0.5, 0.5), xycoords="axes fraction", ha="center", fontsize=9, color=QUIET)


def _draw_panel(axes: Axes, panel: Panel, curve: Curve) -> None:
    if panel.rate is None:
        draw_staircase(axes, curve)
        return
    points = list(zip(curve.points.d, curve.points.median_us, strict=True))
    for i, (modulus, remainders) in enumerate(classes_of(curve)):
        members = [(d, panel.rate(curve, d, t)) for d, t in points if d % modulus in remainders]
        axes.plot(
            [d for d, _ in members], [rate for _, rate in members],
            color=OKABE_ITO[i % len(OKABE_ITO)], marker=MARKERS[i % len(MARKERS)], markersize=4.5,
            linewidth=0.8, markeredgewidth=0, label=label(curve.axis, modulus, remainders),
        )  # fmt: skip
    axes.set_ylim(0, HEADROOM * max(panel.rate(curve, d, t) for d, t in points))
    axes.set_xlabel(curve.axis, color=INK)
    axes.set_ylabel(panel.unit, color=INK)
    dim_ticks(axes, curve.points.d[0], curve.points.d[-1])
