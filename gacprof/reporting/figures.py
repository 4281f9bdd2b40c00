"""Three figures: a curve's staircase, a bench's ratios, plans over budgets."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib import rc_context
from matplotlib.figure import Figure

from gacprof.core.files import replacing
from gacprof.reporting.sections import axis_text

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from gacprof.check.bench import BenchResult
    from gacprof.cliffmap.cliffmap import CliffMap, Curve

STYLES = {
    "safe": ("#009E73", "o"),
    "misaligned": ("#D55E00", "s"),
    "undecided": ("#0072B2", "^"),
    "unknown": ("#666666", "x"),
    "faster": ("#009E73", "o"),
    "slower": ("#D55E00", "s"),
    "reference": ("#222222", "D"),
}
"""Colour and marker by verdict: the palette of Okabe and Ito (2008), which colour-blind readers can
tell apart, and a shape each, so that nothing hangs on colour alone."""

INK, QUIET, FAINT = "#222222", "#666666", "#E3E3E3"

PAGE_COLOURS = {INK: "var(--ink)", QUIET: "var(--quiet)", FAINT: "var(--line)"}
"""Colours that a page draws in its own light or dark mode."""


def new_axes(width: float, height: float, title: str, subtitle: str = "") -> tuple[Figure, Axes]:
    """An empty figure of ``width`` × ``height`` inches in the common look."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(colors=QUIET, labelsize=9)
    axes.grid(True, axis="y", color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    text = f"{title}\n{subtitle}" if subtitle else title
    axes.set_title(text, loc="left", fontsize=10, color=INK)
    return figure, axes


def staircase(cliff_map: CliffMap, curve: Curve, width: float = 7.0) -> Figure:
    """Latency over the sizes of a curve, each by its verdict, cliffs as dashed lines."""
    axis = curve.axis
    conditions = f"{cliff_map.environment.name}, {axis_text(axis)}"
    figure, axes = new_axes(width, 3.6, f"{axis.operator}: latency over {axis.dim}", conditions)
    timed = [v for v in curve.sizes if v.latency_us is not None]
    for name, (colour, marker) in STYLES.items():
        of_verdict = [v for v in timed if v.verdict == name]
        if of_verdict:
            times = [v.latency_us for v in of_verdict if v.latency_us]
            low = [time.value - time.low for time in times]
            high = [time.high - time.value for time in times]
            axes.errorbar(
                [v.size for v in of_verdict],
                [time.value for time in times],
                [low, high],
                linestyle="none",
                marker=marker,
                markersize=4,
                color=colour,
                elinewidth=0.8,
                label=name,
            )
    for cliff in curve.cliffs:
        axes.axvline((cliff.before + cliff.after) / 2, color=QUIET, linewidth=0.8, linestyle="--")
    axes.set_xlabel(axis.dim, color=INK)
    axes.set_ylabel("latency, µs", color=INK)
    axes.set_ylim(bottom=0)
    if timed:
        axes.legend(frameon=False, fontsize=9)
    return figure


def bench_ratios(result: BenchResult, width: float = 7.0) -> Figure:
    """Every model's time over the first model's, with its 95 % interval; left of 1 is faster."""
    timings = [t for t in (*result.timings, *result.replicates) if t.verdict != "reference"]
    height = 1.2 + 0.3 * len(timings)
    subtitle = f"{result.environment.name}, {result.dtype}"
    figure, axes = new_axes(width, height, f"Time over {result.models[0]}'s", subtitle)
    for row, timing in enumerate(reversed(timings)):
        ratio = timing.ratio
        colour, marker = STYLES[timing.verdict]
        errors = [[ratio.value - ratio.low], [ratio.high - ratio.value]]
        axes.errorbar(ratio.value, row, xerr=errors, marker=marker, color=colour)
    labels = [f"{timing.model}, {timing.workload}" for timing in reversed(timings)]
    axes.set_yticks(range(len(timings)), labels)
    axes.axvline(1.0, color=INK, linewidth=0.8)
    return figure


def pareto_front(plans: pd.DataFrame, width: float = 7.0) -> Figure:
    """The loss and the time of the products over the parameters of plans."""
    figure, axes = new_axes(width, 3.6, "Plans over budgets")
    axes.plot(plans["parameters"] / 1e6, plans["loss"], marker="o", color="#0072B2", label="loss")
    axes.set_xlabel("parameters, millions", color=INK)
    axes.set_ylabel("loss", color=INK)
    if plans["us"].notna().any():
        times = axes.twinx()
        times.plot(plans["parameters"] / 1e6, plans["us"] / 1e3, marker="s", color="#D55E00")
        times.set_ylabel("products, ms (squares)", color=INK)
    return figure


def svg_element(figure: Figure) -> str:
    """A figure as an SVG element, the same text for the same figure."""
    buffer = io.StringIO()
    with rc_context({"svg.hashsalt": "gacprof", "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None}, transparent=True)
    svg = re.sub(r"<metadata>.*?</metadata>", "", buffer.getvalue(), flags=re.DOTALL)
    for colour, variable in PAGE_COLOURS.items():
        svg = svg.replace(colour.lower(), variable)
    return svg[svg.index("<svg") :]


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as SVG and PNG: ``path`` with either suffix."""
    for suffix in (".svg", ".png"):
        with replacing(path.with_suffix(suffix)) as temporary:
            figure.savefig(temporary, format=suffix[1:], dpi=150)
