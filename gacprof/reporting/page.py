"""One self-contained HTML page of what the other verbs left: tables, and three kinds of figures."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from jinja2 import Environment, PackageLoader
from matplotlib import rc_context
from matplotlib.figure import Figure

import gacprof
from gacprof.cliffmap.cliffmap import CliffMap, Curve, load_map, shipped_maps
from gacprof.core.errors import GacprofError
from gacprof.core.files import read_json, read_record, replacing, write_text
from gacprof.reporting.sections import RESULTS, axis_text, kind_of, section_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from gacprof.check.bench import BenchResult

CURVES_SHOWN = 4  # of a map, those with the highest penalties
# colour and marker by verdict: the palette of Okabe and Ito (2008), for colour-blind readers too
STYLES = {
    "safe": ("#009E73", "o"),
    "misaligned": ("#D55E00", "s"),
    "undecided": ("#0072B2", "^"),
    "unknown": ("#666666", "x"),
    "faster": ("#009E73", "o"),
    "slower": ("#D55E00", "s"),
}
INK, QUIET, FAINT = "#222222", "#666666", "#E3E3E3"
# colours that a page draws in its own light or dark mode
PAGE_COLOURS = {INK: "var(--ink)", QUIET: "var(--quiet)", FAINT: "var(--line)"}
WIDTH, HEIGHT = 7.0, 3.6  # of figures, in inches


def report(artefacts: Sequence[str | Path], out: str | Path = "report") -> Path:
    """Make one HTML page from maps, plans and saved --json results.

    Parameters
    ----------
    artefacts
        What to show, in this order: maps, run folders, plans, and files of what other verbs printed
        with --json.
    out
        The page's folder: index.html, and figures/ as SVG and PNG.

    Returns
    -------
    Path
        The page.

    Raises
    ------
    GacprofError
        For a file that is none of these.
    """
    folder = Path(out)
    parts = []
    for number, artefact in enumerate(artefacts, 1):
        result = read_artefact(Path(artefact))
        drawn = []
        for letter, figure in enumerate(figures_of(result), 1):
            drawn.append(drawn_figure(figure, folder / "figures" / f"{number}-{letter}"))
        parts.append((section_of(result), drawn))
    loader = PackageLoader("gacprof.reporting")
    pages = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    page = folder / "index.html"
    write_text(page, pages.get_template("page.html.j2").render(parts=parts))
    return page


def read_artefact(path: Path) -> Any:
    """A map, a plan, or what another verb printed with ``--json``."""
    if path.is_dir() or str(path) in shipped_maps():
        return load_map(path)
    try:
        data = read_json(path)
    except (OSError, ValueError) as error:
        raise GacprofError(f"{path} cannot be read as JSON: {error}") from None
    if isinstance(data, list):
        return pd.DataFrame(data)
    schema = data.get("schema") if isinstance(data, dict) else None
    kind = kind_of(str(schema))
    if kind not in RESULTS:
        raise GacprofError(
            f"{path} is nothing that a page shows: name maps, run folders, plans, and what the "
            "other verbs print with --json"
        )
    if kind == "cliffmap":
        return load_map(path)
    return read_record(path, getattr(gacprof, RESULTS[kind][0]), "gacprof VERB … --json")


def figures_of(result: Any) -> list[Figure]:
    """The figures of a result: a map's dearest curves, a bench's ratios, plans over budgets."""
    if isinstance(result, CliffMap):
        timed = [c for c in result.curves if any(v.latency_us for v in c.sizes)]
        dearest = sorted(timed, key=highest_penalty, reverse=True)[:CURVES_SHOWN]
        return [staircase(result, curve) for curve in dearest]
    if isinstance(result, pd.DataFrame) and {"parameters", "loss", "us"} <= {*result.columns}:
        return [pareto_front(result)]
    return [bench_ratios(result)] if hasattr(result, "timings") else []


def highest_penalty(curve: Curve) -> float:
    """The highest penalty that is sure."""
    return max((v.penalty.low for v in curve.sizes if v.penalty), default=0.0)


def new_axes(title: str, height: float = HEIGHT) -> tuple[Figure, Axes]:
    """An empty figure in the common look."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.subplots()
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(colors=QUIET, labelsize=9)
    axes.grid(True, axis="y", color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_title(title, loc="left", fontsize=10, color=INK)
    return figure, axes


def staircase(cliff_map: CliffMap, curve: Curve) -> Figure:
    """Latency over the sizes of a curve, each by its verdict, cliffs as dashed lines."""
    axis = curve.axis
    conditions = f"{cliff_map.environment.name}, {axis_text(axis)}"
    figure, axes = new_axes(f"{axis.operator}: latency over {axis.dim}\n{conditions}")
    look: dict[str, Any] = {"linestyle": "none", "markersize": 4, "elinewidth": 0.8}
    for name, (colour, marker) in STYLES.items():
        of_verdict = [v for v in curve.sizes if v.verdict == name]
        times = {v.size: v.latency_us for v in of_verdict if v.latency_us is not None}
        if times:
            values = [time.value for time in times.values()]
            low = [time.value - time.low for time in times.values()]
            high = [time.high - time.value for time in times.values()]
            look |= {"marker": marker, "color": colour, "label": name}
            axes.errorbar([*times], values, [low, high], **look)
    for cliff in curve.cliffs:
        axes.axvline((cliff.before + cliff.after) / 2, color=QUIET, linewidth=0.8, linestyle="--")
    axes.set_xlabel(axis.dim, color=INK)
    axes.set_ylabel("latency, µs", color=INK)
    axes.set_ylim(bottom=0)
    if axes.containers:
        axes.legend(frameon=False, fontsize=9)
    return figure


def bench_ratios(result: BenchResult) -> Figure:
    """Every model's time over the first model's, with its 95 % interval; left of 1 is faster."""
    timings = [t for t in (*result.timings, *result.replicates) if t.verdict != "reference"]
    title = f"Time over {result.models[0]}'s\n{result.environment.name}, {result.dtype}"
    figure, axes = new_axes(title, 1.2 + 0.3 * len(timings))
    for row, timing in enumerate(reversed(timings)):
        ratio = timing.ratio
        colour, marker = STYLES[timing.verdict]
        errors = [[ratio.value - ratio.low], [ratio.high - ratio.value]]
        axes.errorbar(ratio.value, row, xerr=errors, marker=marker, color=colour)
    labels = [f"{timing.model}, {timing.workload}" for timing in reversed(timings)]
    axes.set_yticks(range(len(timings)), labels)
    axes.axvline(1.0, color=INK, linewidth=0.8)
    return figure


def pareto_front(plans: pd.DataFrame) -> Figure:
    """The loss and the time of the products over the parameters of plans."""
    figure, axes = new_axes("Plans over budgets")
    axes.plot(plans["parameters"] / 1e6, plans["loss"], marker="o", color="#0072B2", label="loss")
    axes.set_xlabel("parameters, millions", color=INK)
    axes.set_ylabel("loss", color=INK)
    if plans["us"].notna().any():
        times = axes.twinx()
        times.plot(plans["parameters"] / 1e6, plans["us"] / 1e3, marker="s", color="#D55E00")
        times.set_ylabel("products, ms (squares)", color=INK)
    return figure


def drawn_figure(figure: Figure, path: Path) -> str:
    """Write a figure as SVG and PNG, ``path`` with either suffix; return it as an SVG element."""
    for suffix in (".svg", ".png"):
        with replacing(path.with_suffix(suffix)) as temporary:
            figure.savefig(temporary, format=suffix[1:], dpi=150)
    buffer = io.StringIO()
    # a salt and no date: the same text for the same figure
    with rc_context({"svg.hashsalt": "gacprof", "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None}, transparent=True)
    svg = re.sub(r"<metadata>.*?</metadata>", "", buffer.getvalue(), flags=re.DOTALL)
    for colour, variable in PAGE_COLOURS.items():
        svg = svg.replace(colour.lower(), variable)
    return svg[svg.index("<svg") :]
