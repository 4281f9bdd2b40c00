"""Before and after, as measured: each model's time over the first's, with its interval."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gacprof.report.figures_style import FAINT, INK, MARKERS, OKABE_ITO, QUIET, new_figure, title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HALF_ROW = 0.4
"""Of the distance between two rows: half the height of the A/A band."""


def bench_figure(bench: Mapping[str, Any]) -> Figure:
    """One row a workload, one mark a model: the ratio to the first model, below 1 is faster.

    A grey band is as wide as the A/A spread: what the first model shows against itself.
    ``bench`` is a bench's ``as_dict()``.
    """
    rows = workloads(bench)
    figure, (axes,) = new_figure(8.0, 1.5 + 0.62 * len(rows))
    axes.axvline(1.0, color=QUIET, linewidth=1.0)
    spreads = {replicate["workload"]: replicate["spread"] for replicate in bench["replicates"]}
    for i, (workload, timings) in enumerate(rows):
        _band(axes, i, spreads[workload])
        for k, model in enumerate(bench["models"][1:]):
            _mark(axes, i, k, len(bench["models"]) - 1, timings[model])
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    axes.margins(x=0.12)
    axes.set_xlabel(f"time ÷ time of {bench['models'][0]}  (left of 1 is faster)", color=INK)
    device = bench["environment"]["name"]
    title(
        axes,
        "Measured interleaved, one run",
        f"{device} · {bench['dtype']} · batch {bench['batch']} · {bench['rounds']} rounds · "
        "95 % intervals for all together",
    )
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, fontsize=9)
    return figure


def _band(axes: Axes, row: int, spread: float) -> None:
    rows, left, right = [row - HALF_ROW, row + HALF_ROW], 1 / (1 + spread), 1 + spread
    name = "A/A spread" if row == 0 else None
    axes.fill_betweenx(rows, left, right, color=FAINT, linewidth=0, zorder=0, label=name)


def _mark(axes: Axes, row: int, k: int, models: int, timing: Mapping[str, Any]) -> None:
    """The k-th model's ratio, in its share of the row."""
    low, middle, high = timing["ratio"]
    y = row + 0.22 * (k - (models - 1) / 2)
    colour, marker = OKABE_ITO[k % len(OKABE_ITO)], MARKERS[k % len(MARKERS)]
    axes.plot([low, high], [y, y], color=colour, linewidth=2.0, solid_capstyle="butt")
    name = timing["model"] if row == 0 else None
    axes.plot(middle, y, marker, color=colour, markersize=7, label=name)
    axes.annotate(
        f"{middle - 1:+.1%}",
        (high, y),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
        fontsize=8.5,
        color=INK,
    )


def workloads(bench: Mapping[str, Any]) -> list[tuple[str, dict[str, Mapping[str, Any]]]]:
    """(workload, model → timing), in the order measured."""
    rows: dict[str, dict[str, Mapping[str, Any]]] = {}
    for timing in bench["timings"]:
        rows.setdefault(timing["workload"], {})[timing["model"]] = timing
    return list(rows.items())
