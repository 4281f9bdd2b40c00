"""One self-contained HTML page from whatever of the chain's artefacts there is.

Every section stands on a file or value that an earlier stage wrote; a stage that was not run
has no section. Figures are inlined as SVG and written beside the page as SVG and PNG.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gacprof.cliffmap import CliffMap
from gacprof.cliffmap.catalogue import map_facts
from gacprof.core.errors import ReportError
from gacprof.core.files import write_text
from gacprof.operators import OPERATORS
from gacprof.report.figures import staircase
from gacprof.report.figures_models import bench_figure, workloads
from gacprof.report.figures_style import save, to_svg
from gacprof.report.wording import FILTERS, headline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gacprof.cliffmap.schema import Curve

MOST_CURVES = 6

_AXIS = "|".join(f"{name}-(?:{'|'.join(op.dims)})" for name, op in OPERATORS.items())
_OURS = re.compile(rf"(?:bench|example|\d+-(?:{_AXIS}))\.(?:svg|png)", re.ASCII)
"""Every name that this module gives a figure."""


@dataclass(frozen=True)
class Contents:
    """What goes on the page; all but the title may be missing. Mappings are ``as_dict()``s.
    ``example`` is another device's map, whose first curve shows what a cliff is."""

    title: str
    cliff_map: CliffMap | None = None
    example: CliffMap | None = None
    subject: str = ""
    diagnosis: Mapping[str, Any] | None = None
    plan: Mapping[str, Any] | None = None
    realigned: Mapping[str, Any] | None = None
    verification: Mapping[str, Any] | None = None
    bench: Mapping[str, Any] | None = None
    commands: Sequence[str] = ()
    notes: Sequence[str] = ()


def write_page(contents: Contents, folder: str | Path) -> Path:
    """Write ``index.html`` and ``figures/`` into ``folder``; the page's path.

    ``figures/`` then holds what the page shows: an earlier page's are removed.

    Raises :class:`ReportError` where that cannot be done.
    """
    from jinja2 import Environment, PackageLoader

    folder = Path(folder)
    figures = _figures(contents)
    drawn = [
        {"name": name, "caption": caption, "svg": _inline(to_svg(figure))}
        for name, caption, figure in figures
    ]
    environment = Environment(
        loader=PackageLoader("gacprof.report", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= FILTERS
    page = environment.get_template("page.html.j2").render(
        c=contents,
        figures=drawn,
        headline=headline(contents),
        bench_rows=workloads(contents.bench) if contents.bench else [],
        map_facts=map_facts(contents.cliff_map) if contents.cliff_map else None,
        noise=contents.cliff_map.file.noise if contents.cliff_map else None,
    )
    target = folder / "index.html"
    try:
        (folder / "figures").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ReportError(f"cannot write to {folder}: {error.strerror}") from None
    for name, _, figure in figures:
        save(figure, folder / "figures" / name)
    try:
        write_text(target, page)
    except OSError as error:
        raise ReportError(f"cannot write {target}: {error.strerror}") from None
    try:
        remove_old(folder / "figures", {name for name, _, _ in figures})
    except OSError as error:
        raise ReportError(f"cannot remove {error.filename}: {error.strerror}") from None
    return target


def _figures(contents: Contents) -> list[tuple[str, str, Figure]]:
    """(file name, caption, figure), the bench first: it is what the reader came for."""
    made: list[tuple[str, str, Figure]] = []
    if contents.bench and len(contents.bench["models"]) > 1:
        caption = "Before and after, models interleaved. Grey: the first model against itself."
        made.append(("bench", caption, bench_figure(contents.bench)))
    if contents.cliff_map is not None:
        for i, curve in enumerate(telling_curves(contents.cliff_map)):
            name = f"{i + 1}-{curve.operator}-{curve.axis}"
            made.append((name, curve.identity, staircase(contents.cliff_map, curve)))
    if contents.example is not None:
        curve = contents.example.curves[0]
        device = contents.example.environment.name
        caption = f"For comparison, not this device: {curve.operator} over {curve.axis}, {device}."
        made.append(("example", caption, staircase(contents.example, curve)))
    return made


def telling_curves(cliff_map: CliffMap, most: int = MOST_CURVES) -> list[Curve]:
    """The curves worth a picture: many dims and steep penalties, at most two per operator axis."""

    def weight(curve: Curve) -> tuple[int, int]:
        return len(curve.cliffs) + len(curve.points.d) // 8, len(curve.points.d)

    chosen: list[Curve] = []
    per_axis: dict[tuple[str, str], int] = {}
    for curve in sorted(cliff_map.curves, key=weight, reverse=True):
        axis = (curve.operator, curve.axis)
        if len(curve.points.d) >= 4 and per_axis.get(axis, 0) < 2:
            per_axis[axis] = per_axis.get(axis, 0) + 1
            chosen.append(curve)
    return chosen[:most]


def _inline(svg: str) -> str:
    """The SVG element alone, without XML prologue, as HTML wants it."""
    return svg[svg.index("<svg") :]


def remove_old(folder: Path, drawn: Collection[str]) -> None:
    """Remove figures under names of ours whose stem is not in ``drawn``; leave anything else."""
    if not folder.is_dir():
        return
    for file in sorted(folder.iterdir()):
        if _OURS.fullmatch(file.name) and file.stem not in drawn:
            file.unlink()
