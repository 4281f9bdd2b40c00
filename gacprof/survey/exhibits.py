"""Stages ``tables`` and ``figures``: the papers' tables of this device beside the published A100's,
their figures 5 to 8 where the map holds them, and staircases.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from gacprof.cliffmap import CliffMap, MapLookupError
from gacprof.cliffmap.schema import Curve
from gacprof.core.errors import GacprofError
from gacprof.core.files import write_json, write_text
from gacprof.report.figures import staircase
from gacprof.report.figures_map import FIGURES, paper_figure
from gacprof.report.figures_style import to_svg
from gacprof.report.page import remove_old, telling_curves
from gacprof.report.tables import Table, render
from gacprof.report.tables_paper import TABLES, paper_table
from gacprof.survey.setting import Setting
from gacprof.survey.state import FAILED, SKIPPED, Outcome

if TYPE_CHECKING:
    from matplotlib.figure import Figure


PUBLISHED = "a100-published"
TABLES_FILE, TABLES_DATA = "tables.md", "tables.json"


def tables(setting: Setting) -> Outcome:
    """Write ``tables.md`` for people and ``tables.json`` for programs."""
    here, there = setting.cliff_map(), CliffMap.load(PUBLISHED)
    device = here.file.device.name
    lines = [f"# Constraint tables: {device}, beside the published A100", ""]
    lines += [
        "A.n are tables of arXiv 2604.09595, B.n of its earlier draft. – is not measured.",
        "",
    ]
    data, notes, filled = {}, [], 0
    for name in TABLES:
        own, failure = _table(here, name)
        published, _ = _table(there, name)
        if failure:
            notes.append(f"{name}: {failure}")
        filled += bool(own and own.rows)
        lines += [f"## {_dotted(name)}", ""]
        for heading, table in ((device, own), ("A100, as published", published)):
            lines += [f"### {heading}", ""]
            lines += [_body(table) if table else "not measured", ""]
        data[_dotted(name)] = {
            "measured": own.as_dict() if own else None,
            "published": published.as_dict() if published else None,
        }
    write_text(setting.folder / TABLES_FILE, "\n".join(lines))
    write_json(setting.folder / TABLES_DATA, {"device": device, "tables": data})
    notes.insert(0, f"{filled} of {len(TABLES)} tables have rows of this device")
    if len(notes) > len(TABLES):
        return Outcome(FAILED, "no table could be made", notes=tuple(notes))
    return Outcome(artefacts=(TABLES_FILE, TABLES_DATA), notes=tuple(notes))


def both(setting: Setting) -> list[tuple[str, Table | None, Table | None]]:
    """(name, this device's, the A100's) for each table, None where it cannot be made."""
    here, there = setting.cliff_map(), CliffMap.load(PUBLISHED)
    return [(_dotted(name), _table(here, name)[0], _table(there, name)[0]) for name in TABLES]


def _table(cliff_map: CliffMap, name: str) -> tuple[Table | None, str]:
    """One failing table does not lose the others."""
    try:
        return paper_table(cliff_map, name), ""
    except GacprofError as error:
        return None, str(error)


def _body(table: Table) -> str:
    if table.rows:
        return render(table)
    reasons = "; ".join(table.notes)
    return f"not measured: {reasons}" if reasons else "not measured"


def _dotted(name: str) -> str:
    return f"{name[0]}.{name[1:]}"


FOLDER = "figures"
MOST_TELLING = 6
LARGE = 8192
"""GEMMs of this size show what the papers' 2k ones hide: tiles and waves without launch costs."""

NAMES = {5: "attention", 6: "gemv", 7: "gemm-2k", 8: "tensor-cores"}


def figures(setting: Setting) -> Outcome:
    """Write each figure as SVG; those that the map lacks are named in the notes."""
    cliff_map = setting.cliff_map()
    written: list[str] = []
    notes: list[str] = []
    for number in FIGURES:
        try:
            figure = paper_figure(cliff_map, number)
        except MapLookupError as miss:
            notes.append(
                f"figure {number} ({NAMES.get(number, number)}): not measured: {_first(miss)}"
            )
            continue
        except GacprofError as error:
            notes.append(f"figure {number}: {error}")
            continue
        written.append(_write(setting, f"figure-{number}-{NAMES.get(number, number)}", figure))
    for name, curve in _own(cliff_map):
        written.append(_write(setting, name, staircase(cliff_map, curve)))
    remove_old(setting.folder / FOLDER, {Path(name).stem for name in written})
    if not written:
        return Outcome(SKIPPED, "the map has no curve to draw", notes=tuple(notes))
    return Outcome(artefacts=tuple(written), notes=tuple(notes))


def _own(cliff_map: CliffMap) -> Iterator[tuple[str, Curve]]:
    """The large GEMMs, then the curves that tell most."""
    drawn = set()
    large = [
        c for c in cliff_map.curves
        if c.operator == "linear" and LARGE in c.fixed.values() and len(c.points.d) >= 4
    ]  # fmt: skip
    for curve in large[:3]:
        drawn.add(curve.identity)
        yield f"gemm-8k-{curve.axis}", curve
    for i, curve in enumerate(telling_curves(cliff_map, MOST_TELLING), start=1):
        if curve.identity not in drawn:
            yield f"{i}-{curve.operator}-{curve.axis}", curve


def _write(setting: Setting, name: str, figure: Figure) -> str:
    write_text(setting.folder / FOLDER / f"{name}.svg", to_svg(figure))
    return f"{FOLDER}/{name}.svg"


def _first(miss: MapLookupError) -> str:
    return str(miss).partition("\n")[0]
