"""Figures 5–8 of arXiv 2604.09595 for any map: attention, GEMV, GEMM, tensor cores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gacprof.cliffmap import CliffMap
from gacprof.cliffmap.schema import Curve
from gacprof.core.errors import ReportError
from gacprof.core.points import BYTES_PER_ELEMENT
from gacprof.report.figures import draw_staircase
from gacprof.report.figures_style import (
    HEADROOM,
    INK,
    MARKERS,
    OKABE_ITO,
    QUIET,
    dim_ticks,
    new_figure,
    title,
)
from gacprof.report.tables_curves import lacking, of_regime

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
        _draw(at, panel, curve)
        fixed = ", ".join(f"{name}={size}" for name, size in curve.fixed.items())
        title(at, panel.heading, f"{cliff_map.file.device.name} · {curve.dtype} · {fixed}")
        at.legend(
            loc="upper left", bbox_to_anchor=(1.005, 1.0), frameon=False, fontsize=9,
            labelcolor=INK, borderaxespad=0.0,
        )  # fmt: skip
    return figure


def _say_missing(axes: Axes, panel: Panel) -> None:
    title(axes, panel.heading)
    axes.set_axis_off()
    words = lacking(f"{panel.operator} over {panel.axis} here", panel.operator, panel.axis)
    axes.annotate(words, (0.5, 0.5), xycoords="axes fraction", ha="center", fontsize=9, color=QUIET)


def _draw(axes: Axes, panel: Panel, curve: Curve) -> None:
    if panel.rate is None:
        draw_staircase(axes, curve)
        return
    from gacprof.cliffmap.detect import label

    classes = [(curve.period.modulus, c.remainders) for c in curve.period.classes] if (
        curve.period
    ) else [(1, [0])]  # fmt: skip
    points = list(zip(curve.points.d, curve.points.median_us, strict=True))
    for i, (modulus, remainders) in enumerate(classes):
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
