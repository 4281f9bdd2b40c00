"""The figures of a page: a map's curves, a bench's ratios, plans over budgets."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import ceil, log2, sqrt
from textwrap import fill
from typing import TYPE_CHECKING, Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from gacprof.cliffmap.cliffmap import CliffMap, Curve, prefill_curves

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from gacprof.check.bench import BenchResult

CURVES_DRAWN = 12
CLIFFS_DRAWN = 3  # of a curve, the highest: a wave of tiles makes dozens
MAX_PANELS = 3
MIN_GAP, WIDE_GAP = 128, 1 / 3  # between two panels: in sizes, and as a share of the axis
LOG_FROM = 3.0  # longest over shortest latency: from here on one linear axis flattens the short
TICKS = 6
MANY = 200  # sizes: from here on with smaller markers
# colour and marker by verdict: the palette of Okabe and Ito (2008), for colour-blind readers too
STYLES = {
    "misaligned": ("#D55E00", "s"),
    "undecided": ("#0072B2", "^"),
    "safe": ("#009E73", "o"),
    "unknown": ("#666666", "x"),
    "faster": ("#009E73", "o"),
    "slower": ("#D55E00", "s"),
}
INK, QUIET, FAINT = "#222222", "#666666", "#E3E3E3"
# of inline figures two stand side by side on a page, so that their text is as large as the page's
WIDTH, HEIGHT = 5.6, 3.9  # in inches
TITLE_WIDTH = 64  # letters


def figures_of(result: Any) -> list[Figure]:
    """The figures of a result: a map's curves that matter, a bench's ratios, plans over budgets."""
    if isinstance(result, CliffMap):
        return [staircase(result, curve) for curve in curves_that_matter(result)]
    if isinstance(result, pd.DataFrame) and {"parameters", "loss", "us"} <= {*result.columns}:
        return [pareto_front(result)]
    return [bench_ratios(result)] if hasattr(result, "timings") else []


def curves_that_matter(cliff_map: CliffMap) -> list[Curve]:
    """Of each operator, dim and dtype the timed curve that is most like a prefill, that with the
    highest sure penalty first."""
    timed = [curve for curve in cliff_map.curves if any(v.latency_us for v in curve.sizes)]
    return sorted(prefill_curves(timed), key=highest_penalty, reverse=True)[:CURVES_DRAWN]


def highest_penalty(curve: Curve) -> float:
    """The highest penalty that is sure."""
    return max((v.penalty.low for v in curve.sizes if v.penalty), default=0.0)


def new_figure(
    title: str, widths: Sequence[float] = (1.0,), height: float = HEIGHT
) -> tuple[Figure, list[Axes]]:
    """An empty figure in the common look, its panels of these relative widths."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    (panels,) = figure.subplots(1, len(widths), sharey=True, squeeze=False, width_ratios=widths)
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[:].set_color(QUIET)
        axes.tick_params(colors=QUIET, labelsize=9)
        axes.grid(True, axis="y", color=FAINT, linewidth=0.8)
        axes.set_axisbelow(True)
    for axes in panels[1:]:  # a dotted edge: sizes are left out
        axes.spines["left"].set_linestyle(":")
        axes.tick_params(axis="y", left=False)
    lines = [fill(line, TITLE_WIDTH) for line in title.splitlines()]
    figure.suptitle("\n".join(lines), x=0.01, ha="left", fontsize=10, color=INK)
    return figure, list(panels)


def staircase(cliff_map: CliffMap, curve: Curve) -> Figure:
    """Latency over the sizes of a curve, each by its verdict, above what padding can reach."""
    axis = curve.axis
    device = cliff_map.environment.name
    parts = split_at_gaps([verdict.size for verdict in curve.sizes])
    longest = max(sqrt(len(part)) for part in parts)
    widths = [max(sqrt(len(part)), longest / 6) for part in parts]
    title = f"{axis.operator}: latency over {axis.dim} on {device}\n{curve.label}"
    figure, panels = new_figure(title, widths)
    set_latency_axis(panels[0], curve)
    for axes, part, width in zip(panels, parts, widths, strict=True):
        draw_reachable(axes, curve, part)
        draw_sizes(axes, curve, part)
        draw_cliffs(axes, curve, part)
        ticks = max(1, round(TICKS * width / sum(widths)))
        step = 2 ** ceil(log2(max(1.0, (part[-1] - part[0]) / ticks)))  # about so many ticks
        multiples = range(ceil(part[0] / step) * step, part[-1] + 1, step)
        axes.set_xticks(multiples if len(multiples) > 1 else [part[0], part[-1]])
    panels[len(panels) // 2].set_xlabel(axis.dim, color=INK)
    add_legend(figure, panels)
    return figure


def split_at_gaps(sizes: Sequence[int]) -> list[list[int]]:
    """Parts of ascending sizes, for a panel each: an axis over a wide gap shows the gap."""
    gaps = sorted(((after - before, after) for before, after in pairwise(sizes)), reverse=True)
    length = sizes[-1] - sizes[0]  # of the axis without the gaps so far
    starts = [sizes[0]]
    for gap, after in gaps[: MAX_PANELS - 1]:
        if gap >= max(MIN_GAP, WIDE_GAP * length):
            starts.append(after)
            length -= gap
    ends = [*sorted(sizes.index(start) for start in starts), len(sizes)]
    return [list(sizes[first:end]) for first, end in pairwise(ends)]


def set_latency_axis(axes: Axes, curve: Curve) -> None:
    """Scale the y axis so that both the lowest and the highest steps can be seen."""
    latencies = [verdict.latency_us for verdict in curve.sizes if verdict.latency_us]
    low = min(latency.low for latency in latencies)
    high = max(latency.high for latency in latencies)
    if high / low > LOG_FROM:
        axes.set_yscale("log")
        axes.set_ylim(low / 1.15, high * 1.1)
        axes.set_ylabel("µs (log scale)", color=INK)
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5, 7)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter("{x:g}")
        return
    # a flat curve's noise is not drawn as if it were a staircase
    margin = max(0.1 * (high - low), 0.05 * low)
    axes.set_ylim(low - margin, high + margin)
    axes.set_ylabel("µs (axis not from 0)", color=INK)


def add_legend(figure: Figure, panels: Sequence[Axes]) -> None:
    """One legend of all panels below them: the verdicts with their counts, then the lines."""
    marks: dict[str, Any] = {}
    for axes in panels:
        drawn, labels = axes.get_legend_handles_labels()
        marks |= dict(zip(labels, drawn, strict=True))
    order = sorted(marks, key=lambda label: not label[0].isdigit())
    look: dict[str, Any] = {"ncols": 2, "frameon": False, "fontsize": 9, "labelcolor": INK}
    figure.legend([marks[label] for label in order], order, loc="outside lower left", **look)


def draw_sizes(axes: Axes, curve: Curve, part: Sequence[int]) -> None:
    """Each size's latency with its 95 % interval by its verdict; without latency, on the axis."""
    many = len(curve.sizes) > MANY
    look: dict[str, Any] = {"linestyle": "none", "markersize": 2.5 if many else 4}
    for name, (colour, marker) in STYLES.items():
        verdicts = [verdict for verdict in curve.sizes if verdict.verdict == name]
        times = {v.size: v.latency_us for v in verdicts if v.latency_us is not None}
        untimed = [v.size for v in verdicts if v.latency_us is None]
        look |= {"marker": marker, "color": colour, "label": f"{len(times)} {name}"}
        shown = {size: time for size, time in times.items() if part[0] <= size <= part[-1]}
        if shown:
            values = [time.value for time in shown.values()]
            errors = [(time.value - time.low, time.high - time.value) for time in shown.values()]
            low, high = zip(*errors, strict=True)
            axes.errorbar([*shown], values, [low, high], elinewidth=0.4 if many else 0.8, **look)
        sizes = [size for size in untimed if part[0] <= size <= part[-1]]
        if sizes:
            look["label"] = f"{len(untimed)} {name}, no time"
            on_the_axis = axes.get_xaxis_transform()
            axes.plot(sizes, [0.0] * len(sizes), transform=on_the_axis, clip_on=False, **look)


def draw_reachable(axes: Axes, curve: Curve, part: Sequence[int]) -> None:
    """A line through the lowest latency of each size and all larger ones: a penalty is the height
    above it."""
    times = {v.size: v.latency_us.value for v in curve.sizes if v.latency_us}
    lowest = [*accumulate(reversed(times.values()), min)][::-1]
    reachable = dict(zip(times, lowest, strict=True))
    sizes = [size for size in reachable if part[0] <= size <= part[-1]]
    look: dict[str, Any] = {"color": QUIET, "linewidth": 0.8, "drawstyle": "steps-pre"}
    line = [reachable[size] for size in sizes]
    axes.plot(sizes, line, label="lowest when padded", **look)


def draw_cliffs(axes: Axes, curve: Curve, part: Sequence[int]) -> None:
    """Dashed lines at the highest cliffs."""
    highest = sorted(curve.cliffs, key=lambda cliff: -cliff.jump.value)[:CLIFFS_DRAWN]
    label = f"cliffs, highest {len(highest)} of {len(curve.cliffs)}"
    for cliff in highest:
        if part[0] <= cliff.before and cliff.after <= part[-1]:
            middle = (cliff.before + cliff.after) / 2
            axes.axvline(middle, color=QUIET, linewidth=0.8, linestyle="--", label=label)


def bench_ratios(result: BenchResult) -> Figure:
    """Every model's time over the first model's, with its 95 % interval; left of 1 is faster."""
    timings = [t for t in (*result.timings, *result.replicates) if t.verdict != "reference"]
    title = f"Time over {result.models[0]}'s\n{result.environment.name}, {result.dtype}"
    figure, (axes,) = new_figure(title, height=1.5 + 0.35 * len(timings))
    for row, timing in enumerate(reversed(timings)):
        ratio = timing.ratio
        colour, marker = STYLES[timing.verdict]
        errors = [[ratio.value - ratio.low], [ratio.high - ratio.value]]
        axes.errorbar(ratio.value, row, xerr=errors, marker=marker, color=colour)
    labels = [fill(f"{timing.model}, {timing.workload}", 30) for timing in reversed(timings)]
    axes.set_yticks(range(len(timings)), labels)
    axes.set_xlabel("left of 1: faster", color=INK)
    axes.axvline(1.0, color=INK, linewidth=0.8)
    return figure


def pareto_front(plans: pd.DataFrame) -> Figure:
    """The loss and the time of the products over the parameters of plans."""
    figure, (axes,) = new_figure("Plans over budgets")
    axes.plot(plans["parameters"] / 1e6, plans["loss"], marker="o", color="#0072B2")
    axes.set_xlabel("parameters, millions", color=INK)
    axes.set_ylabel("loss (circles)", color=INK)
    if plans["us"].notna().any():
        times = axes.twinx()
        times.plot(plans["parameters"] / 1e6, plans["us"] / 1e3, marker="s", color="#D55E00")
        times.set_ylabel("products, ms (squares)", color=INK)
        times.tick_params(colors=QUIET, labelsize=9)
        times.spines[:].set_visible(False)
    return figure
