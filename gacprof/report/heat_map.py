"""Penalty over two dims at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from gacprof.cliffmap import CliffMap
from gacprof.core.errors import ReportError
from gacprof.core.formatting import percent
from gacprof.core.points import Flag
from gacprof.report.figures_style import INK, QUIET, new_figure, title

if TYPE_CHECKING:
    import numpy.typing as npt
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_PENALTY = 1.0
"""Where the colour scale ends: twice the time of the best larger size is bad enough."""

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
    figure, (panel,) = new_figure(7.2, 5.6)
    _draw_heat(figure, panel, grid_penalty(latency))
    panel.set_xlabel(axes[0], color=INK)
    panel.set_ylabel(axes[1], color=INK)
    at = ", ".join(f"{name}={size}" for name, size in fixed.items())
    title(panel, f"{operator}: penalty over {axes[0]} × {axes[1]}",
          " · ".join(filter(None, [cliff_map.file.device.name, dtype or "", at])))  # fmt: skip
    return figure


def grid_penalty(latency: Grid) -> Grid:
    """latency(x, y) / min over x' ≥ x, y' ≥ y − 1, over the measured pairs."""
    across, up, table = _table(latency)
    at_least = np.fmin.accumulate(np.fmin.accumulate(table[::-1, ::-1], 0), 1)[::-1, ::-1]
    return {
        (x, y): t / float(at_least[up.index(y), across.index(x)]) - 1
        for (x, y), t in latency.items()
    }


def _table(values: Grid) -> tuple[list[int], list[int], npt.NDArray[np.float64]]:
    """(across, up, values by [up, across]); NaN where a pair was not measured."""
    across, up = (sorted(set(sizes)) for sizes in zip(*values, strict=True))
    table = np.full((len(up), len(across)), np.nan)
    for (x, y), value in values.items():
        table[up.index(y), across.index(x)] = value
    return across, up, table


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
            for d, t in curve.latencies.items():
                pair = (d, curve.fixed[other]) if swept == axes[0] else (curve.fixed[other], d)
                found[pair] = t
    return found


def _draw_heat(figure: Figure, panel: Axes, penalties: Grid) -> None:
    from matplotlib import colormaps

    across, up, table = _table(penalties)
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
    bar.set_label("penalty: longer than the best larger size", color=INK)
    bar.ax.yaxis.set_major_formatter(lambda value, _: percent(value, decimals=0) or "")
    bar.ax.tick_params(colors=QUIET, labelsize=9)
    bar.outline.set_visible(False)
    # The number in each cell, dark on the light half of the scale and light on the dark.
    for (x, y), penalty in penalties.items() if len(penalties) <= 120 else ():
        panel.annotate(
            percent(penalty, decimals=0) or "", (across.index(x), up.index(y)), ha="center",
            va="center", fontsize=8, color="#FFFFFF" if penalty < 0.45 * top else INK,
        )  # fmt: skip
