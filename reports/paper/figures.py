"""Figures 5 to 8 of arXiv 2604.09595 from a map's own points, and its large GEMMs.

python reports/paper/figures.py MAP --out DIR
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from command_line import arguments, run
from tables import PAPER_ATTENTION, lacking, of_regime

from gacprof.cli.printing import say
from gacprof.cliffmap import CliffMap, MapLookupError
from gacprof.cliffmap.detect import label
from gacprof.cliffmap.schema import Curve
from gacprof.core.errors import ReportError, first_line
from gacprof.core.points import BYTES_PER_ELEMENT
from gacprof.report.figures import classes_of, draw_staircase, staircase
from gacprof.report.figures_style import (
    HEADROOM,
    INK,
    MARKERS,
    OKABE_ITO,
    QUIET,
    dim_ticks,
    legend,
    new_figure,
    save,
    title,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LARGE = 8192
"""GEMMs of this size show what the papers' 2k ones hide: tiles and waves without launch costs."""

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
    5: [Panel("Attention", "attention", "head_dim", PAPER_ATTENTION)],
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


NAMES = {5: "attention", 6: "gemv", 7: "gemm-2k", 8: "tensor-cores"}


def draw_all(cliff_map: CliffMap, folder: Path) -> tuple[list[str], list[str]]:
    """Write every figure that the map holds as SVG and PNG: (their names, what is missing)."""
    drawn, missing = [], []
    for number, name in NAMES.items():
        try:
            figure = paper_figure(cliff_map, number)
        except MapLookupError as error:
            missing.append(f"figure {number} ({name}): {first_line(error)}")
            continue
        save(figure, folder / f"figure-{number}-{name}")
        drawn.append(f"figure-{number}-{name}")
    large = [
        curve for curve in cliff_map.curves
        if curve.operator == "linear" and LARGE in curve.fixed.values() and len(curve.points.d) >= 4
    ]  # fmt: skip
    for i, curve in enumerate(large[:3], start=1):
        save(staircase(cliff_map, curve), folder / f"gemm-8k-{i}-{curve.axis}")
        drawn.append(f"gemm-8k-{i}-{curve.axis}")
    return drawn, missing


def main(asked: argparse.Namespace) -> int:
    drawn, missing = draw_all(CliffMap.load(asked.map), asked.out)
    for line in missing:
        say(f"not drawn: {line}")
    say(f"{len(drawn)} figures in {asked.out}")
    return 0


def command(given: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("map", help="a shipped map's name, or a file")
    parser.add_argument("--out", type=Path, required=True, help="folder for the figures")
    run(main, parser, given)


if __name__ == "__main__":
    command()
