"""Figures 5–8 of arXiv 2604.09595 for any map: attention, GEMV, GEMM, tensor cores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gacprof.cliffmap import CliffMap, MapMiss
from gacprof.cliffmap.schema import Curve
from gacprof.errors import ReportError
from gacprof.report.figures import draw_staircase
from gacprof.report.figures_style import INK, MARKERS, OKABE_ITO, dim_ticks, new_figure, title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Rate = Callable[[Curve, int, float], float]


def tflops(curve: Curve, d: int, latency_us: float) -> float:
    """2·M·N·K over the latency, in TFLOPS."""
    dims = {**curve.fixed, curve.axis: d}
    return 2 * dims["M"] * dims["N"] * dims["K"] / latency_us / 1e6


def gigabytes(curve: Curve, d: int, latency_us: float) -> float:
    """Bytes of the fp16 matrix over the latency, in GB/s."""
    dims = {**curve.fixed, curve.axis: d}
    return 2 * dims["rows"] * dims["K"] / latency_us / 1e3


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
        Panel("GEMV, N = 4096", "linear", "K", {"M": 1, "N": 4096}),
        Panel("GEMV, K = 4096", "linear", "N", {"M": 1, "K": 4096}),
    ],
    7: [
        Panel("GEMM over M", "linear", "M", {"N": 2048, "K": 128}),
        Panel("GEMM over N", "linear", "N", {"M": 2048, "K": 128}),
        Panel("GEMM over K", "linear", "K", {"M": 2048, "N": 2048}),
    ],
    8: [
        Panel("Tensor cores over K", "linear", "K", {"M": 512, "N": 4096}, tflops, "TFLOPS"),
        Panel("Tensor cores over N", "linear", "N", {"M": 512, "K": 4096}, tflops, "TFLOPS"),
        Panel("Row sum over K", "row_sum", "K", {"rows": 1024}, gigabytes, "GB/s", needed=False),
    ],
}


def paper_figure(cliff_map: CliffMap, number: int, dtype: str | None = None) -> Figure:
    """Figure 5, 6, 7 or 8 of the paper, from this map's own points.

    Raises :class:`ReportError` for another number, :class:`MapMiss` where the map lacks a
    panel: the suite ``paper`` holds them all.
    """
    if number not in FIGURES:
        raise ReportError(f"there is no figure {number} to draw (there are 5, 6, 7, 8)")
    panels = []
    for panel in FIGURES[number]:
        try:
            curve = cliff_map.curve(panel.operator, panel.axis, dtype, None, **panel.fixed)
        except MapMiss as miss:
            if panel.needed:
                miss.add_note("the suite 'paper' holds this sweep: gacprof sweep paper")
                raise
            continue
        panels.append((panel, curve))
    figure, axes = new_figure(10.0, 0.4 + 3.3 * len(panels), rows=len(panels))
    for at, (panel, curve) in zip(axes, panels, strict=True):
        _draw(at, panel, curve, cliff_map)
        fixed = ", ".join(f"{name}={size}" for name, size in curve.fixed.items())
        title(at, panel.heading, f"{cliff_map.file.device.name} · {curve.dtype} · {fixed}")
        at.legend(
            loc="upper left", bbox_to_anchor=(1.005, 1.0), frameon=False, fontsize=9,
            labelcolor=INK, borderaxespad=0.0,
        )  # fmt: skip
    return figure


def _draw(axes: Axes, panel: Panel, curve: Curve, cliff_map: CliffMap) -> None:
    if panel.rate is None:
        draw_staircase(axes, curve, cliff_map.floor_of(curve))
        return
    from gacprof.cliffmap.residues import label

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
    axes.set_ylim(bottom=0)
    axes.set_xlabel(curve.axis, color=INK)
    axes.set_ylabel(panel.unit, color=INK)
    dim_ticks(axes, curve.points.d[0], curve.points.d[-1])
