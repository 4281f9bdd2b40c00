"""Penalty over two dims at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from gacprof.cliffmap import CliffMap
from gacprof.core.errors import ReportError
from gacprof.core.formatting import percent
from gacprof.core.points import Flag
from gacprof.reporting.figures_style import INK, QUIET, new_figure, title

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_PENALTY = 1.0
"""Where the colour scale ends: twice the time of the best larger size is bad enough."""

LEAST_SCALE = 0.05
"""The colour scale reaches this far at least, so that noise does not look like structure."""


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
    latency = _grid(cliff_map, operator, axes, dtype, flags, fixed)
    if min(latency.shape) < 2 or 2 * latency.count().sum() < latency.size:
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


def grid_penalty(latency: pd.DataFrame) -> pd.DataFrame:
    """latency(x, y) / min over x' ≥ x, y' ≥ y − 1, over the measured pairs: columns are x, rows y,
    ascending, NaN is not measured."""
    us = latency.to_numpy()
    least = np.fmin.accumulate(np.fmin.accumulate(us[::-1, ::-1], 0), 1)[::-1, ::-1]
    return latency.div(least) - 1


def _grid(
    cliff_map: CliffMap,
    operator: str,
    axes: tuple[str, str],
    dtype: str | None,
    flags: Mapping[str, Flag] | None,
    fixed: Mapping[str, int],
) -> pd.DataFrame:
    """Latencies by the size of axes[1] (rows) and of axes[0], from the curves over either.

    All pairs share flags, dtype and other dims: those of the plainest curve are taken.
    """
    import pandas as pd

    found: dict[tuple[int, int], float] = {}
    kept = None
    for swept, other in (axes, axes[::-1]):
        for curve in cliff_map.select(operator, swept, dtype, flags, **fixed):
            rest = {name: size for name, size in curve.fixed.items() if name != other}
            settings = curve.dtype, curve.flags, rest
            kept = kept or settings
            if other in curve.fixed and settings == kept:
                held = curve.fixed[other]
                for d, us in curve.latencies.items():
                    found[(held, d) if swept == axes[0] else (d, held)] = us
    series = pd.Series(found, dtype=float)
    return series.unstack().sort_index() if found else pd.DataFrame()


def _draw_heat(figure: Figure, panel: Axes, penalties: pd.DataFrame) -> None:
    from matplotlib import colormaps

    table, worst = penalties.to_numpy(), float(np.nanmax(penalties))
    colours = colormaps["cividis"].with_extremes(bad="#FFFFFF")
    top = min(MOST_PENALTY, max(LEAST_SCALE, worst))
    image = panel.imshow(
        np.ma.masked_invalid(table), origin="lower", aspect="auto", cmap=colours,
        vmin=0, vmax=top, interpolation="nearest",
    )  # fmt: skip
    panel.grid(False)
    for axis, sizes in ((panel.xaxis, penalties.columns), (panel.yaxis, penalties.index)):
        step = -(-len(sizes) // 12)
        axis.set_ticks(range(0, len(sizes), step), [str(size) for size in sizes[::step]])
    panel.tick_params(axis="x", rotation=90 if table.shape[1] > 8 else 0)
    bar = figure.colorbar(image, ax=panel, extend="max" if worst > MOST_PENALTY else "neither")
    bar.set_label("penalty: longer than the best larger size", color=INK)
    bar.ax.yaxis.set_major_formatter(lambda value, _: percent(value, decimals=0) or "")
    bar.ax.tick_params(colors=QUIET, labelsize=9)
    bar.outline.set_visible(False)
    # The number in each cell, dark on the light half of the scale and light on the dark.
    for (y, x), penalty in np.ndenumerate(table) if table.size <= 120 else ():
        if not np.isnan(penalty):
            panel.annotate(
                percent(penalty, decimals=0) or "", (x, y), ha="center", va="center", fontsize=8,
                color="#FFFFFF" if penalty < 0.45 * top else INK,
            )  # fmt: skip
