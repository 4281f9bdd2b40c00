"""One self-contained HTML page from whatever of the chain's artefacts there is.

Every section stands on a file or value that an earlier stage wrote; a stage that was not run
has no section. Figures are inlined as SVG and written beside the page as SVG and PNG.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gacprof.cliffmap import CliffMap
from gacprof.cliffmap.detect import penalty
from gacprof.cliffmap.storage import map_facts
from gacprof.core.errors import ReportError
from gacprof.core.files import write_text
from gacprof.operators import OPERATORS
from gacprof.reporting.figures import TIER_SPANS, View, staircase, tier_picture
from gacprof.reporting.figures_models import bench_figure, workloads
from gacprof.reporting.figures_style import as_element, latency_unit, save
from gacprof.reporting.grouping import group
from gacprof.reporting.tables import constraints, rule_table, step_tables, to_html
from gacprof.reporting.verdict import FILTERS, Contents, caption, point_words, verdict
from gacprof.reporting.wording import by_tier, microseconds, percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gacprof.cliffmap.schema import Curve
    from gacprof.rules.table import RuleTable

MOST_CURVES = 6

BENCH_CAPTION = (
    "Each mark is a model's time over the first model's, with its interval; left of 1 is faster. "
    "The grey band is what the first model shows against itself."
)

MANY_DIMS = 32
"""A curve of fewer dims tells less."""

PAGE_WIDTH = 5.6
"""Inches of a figure, so narrow that a phone shows its text in a size that can be read."""

DIM_SHOWN = ("size", "verdict", "advice"), ("latency_us",), ("penalty", "penalty_high")
CHOICE_SHOWN = (
    ("before", "after", "action", "verdict"), ("latency_before_us", "latency_after_us"),
    ("penalty_high",),
)  # fmt: skip
"""What a row shows besides its name: always, where times are known, and where penalties are. Those
alike in all of it are one row."""

_AXIS = "|".join(f"{name}-(?:{'|'.join(op.dims)})" for name, op in OPERATORS.items())
_OURS = re.compile(rf"(?:bench|tiers-(?:{_AXIS})|\d+-(?:{_AXIS}))\.(?:svg|png)", re.ASCII)
"""Every name that this module gives a figure."""


@dataclass(frozen=True)
class Drawn:
    """A figure of the page. ``points`` are (dim, x, y, words), x and y in the SVG's own units."""

    name: str
    heading: str
    caption: str
    svg: str
    axis: str = ""
    points: Sequence[tuple[int, float, float, str]] = ()


def write_page(contents: Contents, folder: str | Path) -> Path:
    """Write ``index.html`` and ``figures/`` into ``folder``; the page's path.

    ``figures/`` then holds what the page shows: an earlier page's are removed.

    Raises :class:`ReportError` where that cannot be done.
    """
    from jinja2 import Environment, PackageLoader

    folder = Path(folder)
    if folder.is_symlink() and not folder.exists():
        raise ReportError(f"{folder} is a link that leads nowhere: name a folder or remove it")
    if folder.suffix.lower() in (".html", ".htm") or (folder.exists() and not folder.is_dir()):
        raise ReportError(
            f"{folder} is a file's name: name a folder, and the page is index.html in it"
        )
    environment = Environment(
        loader=PackageLoader("gacprof.reporting", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= FILTERS
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":")}
    curves = telling_curves(contents.cliff_map, contents.diagnosis) if contents.cliff_map else []
    views = [View(curve, sizes_asked(curve, contents.diagnosis)) for curve in curves]
    figures = list(_figures(contents, views))
    times = contents.diagnosis and contents.diagnosis.get("times")
    of_dims = _shown(contents.diagnosis, "dims", DIM_SHOWN)
    of_choices = _shown(contents.plan, "choices", CHOICE_SHOWN)
    page = environment.get_template("page.html.j2").render(
        c=contents,
        figures=[drawn for drawn, _ in figures],
        verdict=verdict(contents, views),
        of_dims=of_dims,
        dims=_dims(contents.diagnosis, of_dims) if contents.diagnosis else [],
        of_choices=of_choices,
        choices=_alike(contents.plan["choices"], "dim", of_choices) if contents.plan else [],
        bench_rows=workloads(contents.bench) if contents.bench else [],
        map_facts=map_facts(contents.cliff_map.file) if contents.cliff_map else None,
        steps="".join(map(to_html, step_tables(times))) if times and times["totals"] else "",
        tiers=to_html(rule_table(contents.rules)) if contents.rules else "",
        constraints=to_html(constraints(contents.cliff_map, curves)) if contents.cliff_map else "",
    )
    target = folder / "index.html"
    try:
        (folder / "figures").mkdir(parents=True, exist_ok=True)
        for drawn, figure in figures:
            save(figure, folder / "figures" / drawn.name)
        # of a path that is no UTF-8 the odd bytes are shown as \udcff, in letters
        write_text(target, page.encode("utf-8", "backslashreplace").decode())
        remove_old(folder / "figures", {drawn.name for drawn, _ in figures})
    except OSError as error:
        where = error.filename or target
        raise ReportError(f"cannot write the page: {where}: {error.strerror}") from None
    return target


def _alike(
    rows: Sequence[Mapping[str, Any]], name: str, shown: Sequence[str]
) -> list[dict[str, Any]]:
    """Rows that differ in their names only as one, with their count ``n`` and joint ``lost_us``."""
    return [
        {**alike.first, "name": alike.name, "n": len(alike.members),
         "lost_us": sum(row.get("lost_us") or 0.0 for row in alike.members)}
        for alike in group(rows, lambda row: row[name], lambda row: _cells(row, shown))
    ]  # fmt: skip


def _cells(row: Mapping[str, Any], shown: Sequence[str]) -> tuple[Any, ...]:
    """What the page shows of a row: times and penalties as they are written."""
    written = {"latency": microseconds, "penalty": percent}
    return tuple(written.get(k.partition("_")[0], lambda value: value)(row[k]) for k in shown)


def _shown(
    judged: Mapping[str, Any] | None, parts: str, columns: tuple[tuple[str, ...], ...]
) -> tuple[str, ...]:
    """Those of the columns that a diagnosis or a plan has something for."""
    if judged is None:
        return ()
    always, times, penalties = columns
    timed = any(row[key] is not None for row in judged[parts] for key in times)
    return (*always, *times * timed, *penalties * (not by_tier(judged)))


def _dims(diagnosis: Mapping[str, Any], shown: Sequence[str]) -> list[dict[str, Any]]:
    """The diagnosed dims: by verdict, those that lose most first."""
    order = ("misaligned", "undecided", "unknown", "safe")
    rows = _alike(diagnosis["dims"], "name", shown)
    return sorted(rows, key=lambda row: (order.index(row["verdict"]), -row["lost_us"]))


def _figures(contents: Contents, views: Sequence[View]) -> Iterator[tuple[Drawn, Figure]]:
    """The bench first: it is what the reader came for."""
    if contents.bench and len(contents.bench["models"]) > 1:
        figure = bench_figure(contents.bench, PAGE_WIDTH)
        yield Drawn("bench", "", BENCH_CAPTION, as_element(figure, BENCH_CAPTION)), figure
    if contents.cliff_map is not None:
        for i, view in enumerate(views):
            name = f"{i + 1}-{view.curve.operator}-{view.curve.axis}"
            yield _drawn(contents.cliff_map, view, name, view.curve.shape)
    if contents.rules is not None:
        yield from _tiers(contents.rules, contents.diagnosis)


def _tiers(rules: RuleTable, diagnosis: Mapping[str, Any] | None) -> Iterator[tuple[Drawn, Figure]]:
    """The tiers of products and of attention, in the model's dtype."""
    dtype = diagnosis["dtype"] if diagnosis else ""
    dtype = dtype if dtype in rules.dtypes else rules.dtypes[0]
    held = {(tier.operator, part) for tier in rules.tiers if tier.dtype == dtype
            for part in tier.axis.split(", ")}  # fmt: skip
    for operator, axis in (place for place in TIER_SPANS if place in held):
        figure = tier_picture(rules, operator, axis, dtype, PAGE_WIDTH)
        words = f"By rules, in {dtype}: an order of what serves a size, no times."
        svg = as_element(figure, f"Tiers of {operator} over {axis}. {words}")
        yield Drawn(f"tiers-{operator}-{axis}", f"{operator} {axis}", words, svg, axis), figure


def _drawn(cliff_map: CliffMap, view: View, name: str, heading: str) -> tuple[Drawn, Figure]:
    figure = staircase(cliff_map, view.curve, PAGE_WIDTH, view.asked)
    words, axis = caption(view), f"{view.curve.operator} over {view.curve.axis}"
    svg = as_element(figure, f"Latency of {axis}. {words}")  # which also lays the axes out
    first, last = view.shown
    shown = {d: us for d, us in view.curve.latencies.items() if first <= d <= last}
    factor, _ = latency_unit(list(shown.values()))
    width, height = figure.bbox.size
    scale = 72 * figure.get_figwidth() / width  # SVG counts points from above
    texts, points = point_words(view.curve), []
    for d, us in shown.items():
        x, y = figure.axes[0].transData.transform((d, factor * us))
        points.append((d, round(x * scale, 1), round((height - y) * scale, 1), texts[d]))
    return Drawn(name, heading, words, svg, view.curve.axis, points), figure


def sizes_asked(curve: Curve, diagnosis: Mapping[str, Any] | None) -> list[int]:
    """Adjustable sizes of a diagnosed model on this curve's axis, beside its other dim."""
    if diagnosis is None or curve.operator != "linear" or curve.axis not in ("N", "K"):
        return []
    sizes = {dim["name"]: dim["size"] for dim in diagnosis["dims"]}
    other, found = "K" if curve.axis == "N" else "N", set()
    for weight in diagnosis["weights"]:
        for gemm in weight["gemms"]:
            product = dict(zip("NK", map(int, gemm.split("×")), strict=True))
            if product[other] == curve.fixed.get(other):
                found |= {product[curve.axis]} & {sizes[name] for name in weight["dims"]}
    return sorted(found)


def telling_curves(cliff_map: CliffMap, diagnosis: Mapping[str, Any] | None = None) -> list[Curve]:
    """The curves worth a picture, at most two per operator axis: those with most of the
    diagnosed model's sizes, then those where a dim costs most on the average."""

    def weight(curve: Curve) -> tuple[int, float]:
        lost = penalty(curve.points.latency_us)
        return len(sizes_asked(curve, diagnosis)), sum(lost) / max(len(lost), MANY_DIMS)

    chosen: list[Curve] = []
    for curve in sorted(cliff_map.curves, key=weight, reverse=True):
        alike = [c for c in chosen if (c.operator, c.axis) == (curve.operator, curve.axis)]
        if len(curve.points.d) >= 4 and len(alike) < 2:
            chosen.append(curve)
    # the model's own sizes, then what models are made of, probes of the memory last
    order = {"attention": 0, "linear": 1}
    chosen = chosen[:MOST_CURVES]
    return sorted(chosen, key=lambda c: (not sizes_asked(c, diagnosis), order.get(c.operator, 2)))


def remove_old(folder: Path, drawn: Collection[str]) -> None:
    """Remove figures under names of ours whose stem is not in ``drawn``; leave anything else."""
    for file in sorted(folder.iterdir()):
        if _OURS.fullmatch(file.name) and file.stem not in drawn:
            file.unlink()
