"""Figures 5 to 8 of arXiv 2604.09595 from a map's own points, and its large GEMMs.

    python reports/paper/figures.py MAP --out DIR

What the map lacks is said, with the suite that measures it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from tables import PAPER_ATTENTION, lacking, of_regime
from typer import Argument, Option

from gacprof.cli.app import main
from gacprof.cli.printing import say
from gacprof.cliffmap import CliffMap, MapLookupError
from gacprof.cliffmap.detect import label
from gacprof.cliffmap.schema import Curve
from gacprof.core.errors import ReportError, first_line
from gacprof.core.points import BYTES_PER_ELEMENT
from gacprof.reporting.figures import draw_staircase, staircase
from gacprof.reporting.figures_style import (
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


Panel = tuple[str, str, str, dict[str, int], str]
"""(heading, operator, axis, the paper's shape, the unit of its rate: empty for latency)."""

FIGURES: dict[int, tuple[str, list[Panel]]] = {
    5: ("attention", [("Attention", "attention", "head_dim", PAPER_ATTENTION, "")]),
    6: (
        "gemv",
        [
            ("GEMV over K", "linear", "K", {"M": 1, "N": 4096}, ""),
            ("GEMV over N", "linear", "N", {"M": 1, "K": 4096}, ""),
        ],
    ),
    7: (
        "gemm-2k",
        [
            ("GEMM over M", "linear", "M", {"N": 2048, "K": 128}, ""),
            ("GEMM over N", "linear", "N", {"M": 2048, "K": 128}, ""),
            ("GEMM over K", "linear", "K", {"M": 2048, "N": 2048}, ""),
        ],
    ),
    8: (
        "tensor-cores",
        [
            ("GEMM rate over K", "linear", "K", {"M": 512, "N": 4096}, "TFLOPS"),
            ("GEMM rate over N", "linear", "N", {"M": 512, "K": 4096}, "TFLOPS"),
            ("Row sum over K", "row_sum", "K", {"rows": 1024}, "GB/s"),
        ],
    ),
}


def paper_figure(cliff_map: CliffMap, number: int, dtype: str | None = None) -> Figure:
    """Figure 5, 6, 7 or 8 of the paper, from this map's own points.

    A panel is drawn at the paper's shape, else at the map's plainest one of the same regime;
    its heading says which. A panel that the map lacks names the suite that gives it. Raises
    :class:`ReportError` for another number, :class:`MapLookupError` where the map lacks all panels.
    """
    if number not in FIGURES:
        raise ReportError(f"there is no figure {number} to draw (there are 5, 6, 7, 8)")
    _, panels = FIGURES[number]
    curves = [of_regime(cliff_map, *panel[1:4], dtype) for panel in panels]
    if not any(curves):
        _, operator, axis, fixed, _ = panels[0]
        cliff_map.curve(operator, axis, dtype, None, **fixed)
    figure, axes = new_figure(10.0, 0.4 + 3.3 * len(panels), rows=len(panels))
    for at, (heading, operator, axis, _, unit), curve in zip(axes, panels, curves, strict=True):
        if curve is None:
            title(at, heading)
            at.set_axis_off()
            at.annotate(
                lacking(f"{operator} over {axis} here"), (0.5, 0.5), xycoords="axes fraction",
                ha="center", fontsize=9, color=QUIET,
            )  # fmt: skip
            continue
        _draw_rate(at, curve, unit) if unit else draw_staircase(at, curve)
        fixed_dims = ", ".join(f"{name}={size}" for name, size in curve.fixed.items())
        title(at, heading, f"{cliff_map.file.device.name} · {curve.dtype} · {fixed_dims}")
        legend(at)
    return figure


def _rate(curve: Curve, d: int, latency_us: float) -> float:
    """Of a product 2·M·N·K over the latency, in TFLOPS; of a row sum the matrix's GB/s."""
    dims = {**curve.fixed, curve.axis: d}
    if curve.operator == "linear":
        return 2 * dims["M"] * dims["N"] * dims["K"] / latency_us / 1e6
    return BYTES_PER_ELEMENT[curve.dtype] * dims["rows"] * dims["K"] / latency_us / 1e3


def _draw_rate(axes: Axes, curve: Curve, unit: str) -> None:
    rates = {d: _rate(curve, d, us) for d, us in curve.latencies.items()}
    for i, (modulus, remainders) in enumerate(curve.classes):
        members = {d: rate for d, rate in rates.items() if d % modulus in remainders}
        axes.plot(
            list(members), list(members.values()),
            color=OKABE_ITO[i % len(OKABE_ITO)], marker=MARKERS[i % len(MARKERS)], markersize=4.5,
            linewidth=0.8, markeredgewidth=0, label=label(curve.axis, modulus, remainders),
        )  # fmt: skip
    axes.set_ylim(0, HEADROOM * max(rates.values()))
    axes.set_xlabel(curve.axis, color=INK)
    axes.set_ylabel(unit, color=INK)
    dim_ticks(axes, curve.points.d[0], curve.points.d[-1])


def draw_all(cliff_map: CliffMap, folder: Path) -> tuple[list[str], list[str]]:
    """Write every figure that the map holds as SVG and PNG: (their names, what is missing)."""
    drawn, missing = [], []
    for number, (name, _) in FIGURES.items():
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


script = typer.Typer(name="figures.py", add_completion=False, rich_markup_mode=None)


@script.command(help=__doc__)
def figures(
    cliff_map: Annotated[str, Argument(metavar="MAP", help="A shipped map's name, or a file.")],
    out: Annotated[Path, Option(help="The folder for the figures.")],
) -> None:
    drawn, missing = draw_all(CliffMap.load(cliff_map), out)
    for line in missing:
        say(f"not drawn: {line}")
    say(f"{len(drawn)} figures in {out}")


if __name__ == "__main__":
    main(script)
