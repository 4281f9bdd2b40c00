"""Stage ``page``: one self-contained HTML page of everything that the survey has so far.

Every section stands on a file that a stage wrote; a stage without one has its reason there.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from gacprof import __version__
from gacprof.core.errors import GacprofError
from gacprof.core.files import write_text
from gacprof.report.tables import Table, render
from gacprof.survey import evidence, exhibits, prediction
from gacprof.survey.condition import read as read_doctor
from gacprof.survey.setting import Setting
from gacprof.survey.state import FILE as STATE
from gacprof.survey.state import Outcome

FILE = "index.html"

STYLE = """
:root { --ink: #1d1f21; --quiet: #5f6368; --line: #e2e4e8; --tint: #f6f7f9; --bad: #a84300; }
body { margin: 0 auto; padding: 2.5rem 1.25rem 4rem; max-width: 66rem; color: var(--ink);
       background: #fff; font: 16px/1.55 system-ui, "Segoe UI", sans-serif; }
h1 { font-size: 1.7rem; margin: 0 0 .3rem; }
h2 { font-size: 1.2rem; margin: 2.6rem 0 .6rem; padding-top: .8rem;
     border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.4rem 0 .3rem; }
.quiet { color: var(--quiet); font-size: .92rem; } .bad { color: var(--bad); }
.findings { background: var(--tint); border-left: 4px solid #0072b2; padding: .6rem 1.2rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: .4rem 0; }
th, td { padding: .25rem .8rem .25rem 0; border-bottom: 1px solid var(--line); text-align: left; }
th { color: var(--quiet); } .number { text-align: right; }
figure { margin: 1.2rem 0; } figure svg { width: 100%; height: auto; }
summary { cursor: pointer; }
"""


def write(setting: Setting) -> Outcome:
    """Write ``index.html``. A section that cannot be made says why and loses no other."""
    device = setting.machine.device.environment
    title = f"gacprof survey: {device.name}"
    parts = [f"<h1>{_e(title)}</h1>", f'<p class="quiet">{_e(_stack(setting))}</p>']
    notes = []
    for heading, make in SECTIONS:
        try:
            body = list(make(setting))
        except (GacprofError, OSError, ValueError, KeyError) as error:
            notes.append(f"{heading}: {error}")
            body = [f'<p class="bad">not measured: {_e(str(error))}</p>']
        parts += [f"<h2>{_e(heading)}</h2>", *(body or ['<p class="bad">not measured</p>'])]
    page = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{_e(title)}</title>'
        f"<style>{STYLE}</style></head><body>\n" + "\n".join(parts) + "\n</body></html>\n"
    )
    write_text(setting.folder / FILE, page)
    return Outcome(artefacts=(FILE,), notes=tuple(notes))


def _condition(setting: Setting) -> Iterator[str]:
    """What the device suffered from, at each look."""
    looks = read_doctor(setting).get("conditions", [])
    words: dict[str, bool] = {}
    for look in looks:
        for finding in look["findings"]:
            words[finding["words"]] = finding["mark"]
    if not any(words.values()):
        yield "<p>Nothing was found that is known to spoil timings; what was looked at:</p>"
    items = (f"<li{_class(mark)}>{_e(text)}</li>" for text, mark in words.items())
    yield f"<ul>{''.join(items)}</ul>"


def _stages(setting: Setting) -> Iterator[str]:
    yield "<table><tr><th>stage</th><th>status</th><th>seconds</th><th>what of it</th></tr>"
    for name, record in _state(setting)["stages"].items():
        if name == "page":
            continue
        words = [record["reason"], *record["notes"]]
        words += [f"to deepen: {record['thin']}"] if record["thin"] else []
        said = "<br>".join(_e(word) for word in words if word)
        bad = _class(record["status"] != "done")
        yield (
            f"<tr><td>{_e(name)}</td><td{bad}>{_e(record['status'])}</td>"
            f'<td class="number">{record["seconds"]:.0f}</td><td>{said}</td></tr>'
        )
    yield "</table>"


def _end_to_end(setting: Setting) -> Iterator[str]:
    data = json.loads((setting.folder / "end_to_end.json").read_text(encoding="utf-8"))
    rows = prediction.rows(data, setting.cliff_map())
    shape = data["shape"]
    yield (
        f"<p>Shapes of {_e(shape['scale'])}, {_e(shape['dtype'])}; weights are random and normal, "
        "nothing is trained. The models of a group are interleaved.</p>"
    )
    said = "".join(f"<p>{_e(sentence)}</p>" for sentence in prediction.headlines(rows))
    yield f'<div class="findings">{said}</div>'
    for table in prediction.tables(rows):
        yield f'<div class="scroll">{render(table, "html")}</div>'
    for name, why in (data.get("not_measured") or {}).items():
        yield f'<p class="bad">not measured: {_e(name)}: {_e(why)}</p>'


def _tables(setting: Setting) -> Iterator[str]:
    for name, own, published in exhibits.both(setting):
        title = next((f"{name}. {t.title}" for t in (own, published) if t is not None), name)
        yield f"<h3>{_e(title)}</h3>"
        if own is not None and own.rows:
            yield f'<div class="scroll">{_captionless(own)}</div>'
        else:
            yield f'<p class="bad">not measured: {_e("; ".join(own.notes) if own else "")}</p>'
        if published is not None and published.rows:
            body = f'<div class="scroll">{_captionless(published)}</div>'
            yield f"<details><summary>A100, as published</summary>{body}</details>"


def _captionless(table: Table) -> str:
    """The heading above says what the table is."""
    return re.sub(r"<caption>.*?</caption>\n?", "", render(table, "html"), flags=re.DOTALL)


def _figures(setting: Setting) -> Iterator[str]:
    for name in _state(setting)["stages"].get("figures", {}).get("artefacts", ()):
        svg = (setting.folder / name).read_text(encoding="utf-8")
        caption = name.removeprefix(f"{exhibits.FOLDER}/").removesuffix(".svg")
        yield (
            f"<figure>{svg[svg.index('<svg') :]}<figcaption class='quiet'>{_e(caption)}"
            "</figcaption></figure>"
        )


def _disputes(setting: Setting) -> Iterator[str]:
    verdicts = json.loads((setting.folder / evidence.DISPUTES_DATA).read_text(encoding="utf-8"))
    yield "<table><tr><th></th><th>dispute</th><th>verdict</th><th>finding and evidence</th></tr>"
    for v in verdicts:
        lines = "<br>".join(_e(line) for line in (v["finding"], *v["evidence"]))
        basis = f" ({v['basis']})" if v["basis"] else ""
        yield (
            f"<tr><td>{v['number']}</td><td>{_e(v['title'])}</td>"
            f"<td{_class(v['status'] != 'settled')}>{_e(v['status'] + basis)}</td>"
            f"<td>{lines}</td></tr>"
        )
    yield "</table>"


def _doctor(setting: Setting) -> Iterator[str]:
    yield "<table><tr><th>component</th><th>here</th><th>version</th><th>what follows</th></tr>"
    marks = {True: "yes", False: "no", None: "–"}
    for check in read_doctor(setting)["checks"]:
        yield (
            f"<tr><td>{_e(check['name'])}</td><td>{marks[check['available']]}</td>"
            f"<td>{_e(check['version'] or '–')}</td><td>{_e(check['note'])}</td></tr>"
        )
    yield "</table>"


Section = Callable[[Setting], Iterator[str]]

SECTIONS: tuple[tuple[str, Section], ...] = (
    ("State of the device", _condition),
    ("End to end, predicted against measured", _end_to_end),
    ("Constraint tables", _tables),
    ("Figures", _figures),
    ("What the papers disagree about", _disputes),
    ("Stages", _stages),
    ("What can be measured here", _doctor),
)


def _state(setting: Setting) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((setting.folder / STATE).read_text(encoding="utf-8"))
    return data


def _stack(setting: Setting) -> str:
    where = setting.machine.device.environment
    stack = ", ".join(f"{name} {version}" for name, version in where.stack.items() if version)
    return f"{where.arch}; {stack or f'gacprof {__version__}'}; suite {setting.suite}"


def _class(bad: bool) -> str:
    return ' class="bad"' if bad else ""


def _e(text: str) -> str:
    return html.escape(str(text))
