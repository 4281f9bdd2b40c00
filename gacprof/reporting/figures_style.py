"""One look for all figures: colours that colour-blind readers can tell apart, quiet axes, saving.

Matplotlib is used through its objects only; no global state is read or left behind.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Sequence
from html import escape
from math import ceil, log2
from pathlib import Path
from typing import TYPE_CHECKING

from gacprof.core.errors import ReportError
from gacprof.core.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""The palette of Okabe and Ito (2008), its yellow left out: too pale on white."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
"""One shape a class, so that nothing hangs on colour alone."""

INK, QUIET, FAINT = "#222222", "#666666", "#E3E3E3"
PNG_DPI = 150

IN_PAGE = {
    INK: "var(--ink)",
    QUIET: "var(--quiet)",
    FAINT: "var(--line)",
    "#ffffff": "var(--paper)",
}
"""What a page's light and dark modes draw in colours of their own."""

TITLE = "title"
"""The id of a panel's title and of the line below it."""

LETTER = 4.4
"""Points that a letter of this line takes on average, at its size."""

HEADROOM = 1.06
"""An axis that begins at zero ends this much above its highest point, so that a flat curve is
not cut in half."""


def new_figure(
    width: float, height: float, rows: int = 1, columns: int = 1, sharex: bool = False
) -> tuple[Figure, list[Axes]]:
    """A figure in inches with its axes in reading order."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False, sharex=sharex)
    flat = [axis for row in axes for axis in row]
    for axis in flat:
        quieten(axis)
    return figure, flat


def quieten(axes: Axes) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(QUIET)
    axes.tick_params(colors=QUIET, labelsize=9)
    axes.grid(True, axis="y", color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)


def title(axes: Axes, main: str, sub: str = "") -> None:
    """What the panel shows, and below it under which conditions, both flush left."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    lines = textwrap.wrap(sub, int(0.86 * 72 * figure.get_figwidth() / LETTER))
    lift = 6 + 11 * len(lines)
    axes.set_title(main, loc="left", fontsize=11, color=INK, fontweight="bold", pad=lift, gid=TITLE)
    if lines:
        axes.annotate(
            "\n".join(lines), (0, 1), xycoords="axes fraction", xytext=(0, 4),
            textcoords="offset points", fontsize=8.5, color=QUIET, va="bottom", gid=TITLE,
        )  # fmt: skip


def legend(axes: Axes) -> None:
    """Below the axes, where no point is: beside them it would take a narrow screen's width."""
    from matplotlib.transforms import offset_copy

    figure = axes.get_figure(root=True)
    assert figure is not None
    axes.legend(
        loc="upper left", bbox_to_anchor=(0.0, 0.0), frameon=False, fontsize=9, labelcolor=INK,
        bbox_transform=offset_copy(axes.transAxes, figure, y=-36, units="points"),
        ncols=2 if figure.get_figwidth() < 8 else 4, handlelength=1.6, borderaxespad=0.0,
    )  # fmt: skip


def dim_ticks(axes: Axes, first: int, last: int) -> None:
    """Ticks at a power of two's multiples, about eight of them: dims are not decimal."""
    from matplotlib.ticker import MultipleLocator

    axes.xaxis.set_major_locator(MultipleLocator(2 ** max(0, ceil(log2(max(last - first, 1) / 9)))))


def latency_unit(latencies_us: Sequence[float]) -> tuple[float, str]:
    """(factor, unit) that keep the numbers of an axis short."""
    return (1e-3, "ms") if max(latencies_us) >= 1000 else (1.0, "µs")


def to_svg(figure: Figure) -> str:
    """The figure as SVG text, the same for the same figure (no date, no random ids)."""
    from matplotlib import rc_context

    buffer = io.StringIO()
    with rc_context({"svg.hashsalt": "gacprof", "svg.fonttype": "path"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def as_element(figure: Figure, words: str) -> str:
    """The figure as an element of a page, named by ``words`` for who cannot see it: its text is
    text, its ink the page's own, and its title left to the page."""
    from matplotlib import rc_context

    titles = figure.findobj(lambda artist: artist.get_gid() == TITLE)
    buffer = io.StringIO()
    with rc_context({"svg.hashsalt": "gacprof", "svg.fonttype": "none"}):
        for text in titles:
            text.set_visible(False)
        figure.savefig(buffer, format="svg", metadata={"Date": None})
        for text in titles:
            text.set_visible(True)
    svg = re.sub(r"<metadata>.*?</metadata>", "", buffer.getvalue(), flags=re.S)
    svg = re.sub(r'font-family: [^;"]*', "font-family: inherit", svg)
    svg = re.sub(r"(\.\d\d)\d+", r"\1", svg)  # hundredths of a point are enough
    svg = re.sub(r' id="[\w.]+_\d+"', "", svg[svg.index("<svg") :])  # every figure has the same
    for drawn, named in IN_PAGE.items():
        svg = svg.replace(drawn.lower(), named)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{escape(words)}" ', 1)


def save(figure: Figure, stem: str | Path) -> list[Path]:
    """Write ``stem.svg`` and ``stem.png``, atomically; their paths.

    Raises :class:`ReportError` where they cannot be written.
    """
    stem = Path(stem)
    svg, png = (stem.with_name(f"{stem.name}.{kind}") for kind in ("svg", "png"))
    try:
        with replacing(svg) as temporary:
            temporary.write_text(to_svg(figure), encoding="utf-8")
        with replacing(png) as temporary:
            figure.savefig(temporary, format="png", dpi=PNG_DPI, metadata={"Software": None})
    except OSError as error:
        raise ReportError(f"cannot write the figure {stem}: {error.strerror}") from None
    return [svg, png]
