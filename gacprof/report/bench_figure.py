"""Before and after, as measured: each model's time over the first's, with its interval."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gacprof.report.figures_style import INK, MARKERS, OKABE_ITO, QUIET, new_figure, title

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def bench_figure(bench: Mapping[str, Any]) -> Figure:
    """One row a workload, one mark a model: the ratio to the first model, below 1 is faster.

    ``bench`` is a bench's ``as_dict()``.
    """
    rows = workloads(bench)
    models = bench["models"][1:]
    figure, (axes,) = new_figure(8.0, 1.5 + 0.62 * len(rows))
    axes.axvline(1.0, color=QUIET, linewidth=1.0)
    lowest = 1.0
    for k, model in enumerate(models):
        for i, (_, timings) in enumerate(rows):
            ratio = timings[model].get("ratio")
            if ratio is None:
                continue
            low, middle, high = ratio
            lowest = min(lowest, low)
            y = i + 0.22 * (k - (len(models) - 1) / 2)
            colour = OKABE_ITO[k % len(OKABE_ITO)]
            axes.plot([low, high], [y, y], color=colour, linewidth=2.0, solid_capstyle="butt")
            marker = MARKERS[k % len(MARKERS)]
            name = model if i == 0 else None
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
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    axes.margins(x=0.12)
    axes.set_xlabel(f"time ÷ time of {bench['models'][0]}  (left of 1 is faster)", color=INK)
    device = bench["environment"]["name"]
    title(
        axes,
        "Measured in turns, one run",
        f"{device} · {bench['dtype']} · batch {bench['batch']} · {bench['rounds']} rounds · "
        "median and 95 % interval of the paired ratios",
    )
    if models:
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, fontsize=9)
    return figure


def workloads(bench: Mapping[str, Any]) -> list[tuple[str, dict[str, Mapping[str, Any]]]]:
    """(workload, model → timing), in the order measured."""
    rows: dict[str, dict[str, Mapping[str, Any]]] = {}
    for timing in bench["timings"]:
        rows.setdefault(timing["workload"], {})[timing["model"]] = timing
    return list(rows.items())
