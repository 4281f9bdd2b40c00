"""Stage ``tables``: the papers' constraint tables of this device, beside the published A100's."""

from __future__ import annotations

from gacprof.cliffmap import CliffMap
from gacprof.core.errors import GacprofError
from gacprof.core.files import write_json, write_text
from gacprof.report.tables import Table, render
from gacprof.report.tables_paper import TABLES, paper_table
from gacprof.survey.setting import Setting
from gacprof.survey.state import FAILED, Outcome

PUBLISHED = "a100-published"
FILE, DATA = "tables.md", "tables.json"


def write(setting: Setting) -> Outcome:
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
    write_text(setting.folder / FILE, "\n".join(lines))
    write_json(setting.folder / DATA, {"device": device, "tables": data})
    notes.insert(0, f"{filled} of {len(TABLES)} tables have rows of this device")
    if len(notes) > len(TABLES):
        return Outcome(FAILED, "no table could be made", notes=tuple(notes))
    return Outcome(artefacts=(FILE, DATA), notes=tuple(notes))


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
