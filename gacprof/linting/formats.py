"""A verdict as other programs read it: Markdown, GitHub's annotations, JUnit's XML, SARIF.

And what continuous integration needs: which findings fail a run, and a baseline of known ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree as Xml

from gacprof.core.errors import LintError, why_unreadable
from gacprof.core.files import read_json, write_json
from gacprof.core.formatting import percent, visible
from gacprof.demands.table import OUTCOMES, in_words
from gacprof.linting.verdict import Lint, Row

FAIL_ON = ("unknown", "pads", "falls_back", "wrong", "refused")
BASELINE = "gacprof.lint-baseline/1"
LEVELS = {
    "pads": "note", "misaligned": "note", "falls_back": "warning", "memory": "warning",
    "wrong": "error", "refused": "error",
}  # fmt: skip
"""SARIF's levels (SARIF 2.1.0, §3.27.10)."""
GITHUB = {"note": "notice", "warning": "warning", "error": "error"}


def verdict(row: Row) -> str:
    """A row's outcome in a few words: ``pads to 256 (+33.3 %)``."""
    if row.outcome == "pads" and row.padded_to:
        to = " × ".join(str(size) for size in row.padded_to.values())
        return f"pads to {to} ({percent(row.extra, signed=True)})"
    if row.outcome == "falls_back":
        return f"falls back to {row.kernel}" if row.kernel else "falls back"
    if row.outcome == "ok" and (row.tier or 1) > 1:
        return "misaligned"
    return in_words(row.outcome)


def headline(found: Lint) -> str:
    """The outcome in a few words, and what is behind it."""
    said = in_words(found.outcome)
    if found.misaligned and found.outcome == "ok":
        said = f"ok for the engine, misaligned on {found.gpu}"
    elif (experts := _experts(found)) and found.outcome == "ok":
        said = f"ok for the engine, {', '.join(experts)} not judged on {found.gpu}"
    elif found.unknown and found.outcome == "ok":
        said = "ok as far as the config says"
    return said + (f", but {found.too_large}" if found.too_large else "")


def _experts(found: Lint) -> list[str]:
    """Experts of a size that no rule of the GPU covers."""
    return [r.name for r in found.unknown if r.role.startswith("expert_") and not r.missing]


def one_line(text: str) -> str:
    """A stranger's text in one line: every control character is escaped, ends of lines too."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def fingerprint(found: Lint, row: Row) -> str:
    """What a finding is recognised by in a baseline: not by the config's folder, nor the engine's
    version or words."""
    return _fingerprint(found, row.name, row.axis, row.size, row.outcome)


def _fingerprint(found: Lint, *parts: object) -> str:
    ranks = f"tp{found.tp}{'+ep' if found.ep else ''}"
    asked = (Path(found.model).name, found.engine, found.gpu, found.quant, ranks)
    return "|".join(map(str, (*asked, *parts)))


class Item(NamedTuple):
    """A finding for other programs. ``kind`` is an outcome, ``misaligned`` or ``memory``; ``text``
    is one line that stands by itself."""

    name: str
    kind: str
    text: str
    rule: str
    source: str
    fingerprint: str


def _item(found: Lint, row: Row) -> Item | None:
    """A product's finding; None where nothing is wrong with it, or nothing is known of it."""
    said = verdict(row)
    kind = said if said == "misaligned" else row.outcome
    if kind not in LEVELS:
        return None
    why = f": {row.why}" if row.why else ""
    text = one_line(f"{row.name}: {said} ({_asked(found)}){why}")
    rule = f"{found.engine}/{row.demand}" if row.demand else f"{found.gpu}/tier"
    return Item(one_line(row.name), kind, text, rule, row.source, fingerprint(found, row))


def _asked(found: Lint) -> str:
    ranks = f"tp {found.tp}{' with expert parallelism' if found.ep else ''}"
    return f"{found.engine} {found.version}, {found.quant}, {ranks}, {found.gpu}"


def _memory(found: Lint) -> list[Item]:
    """The finding that a rank's weights leave no room in the GPU's memory, where they do not."""
    if not found.too_large:
        return []
    text = one_line(f"memory: {found.too_large} ({_asked(found)})")
    return [
        Item("memory", "memory", text, f"{found.gpu}/memory", "", _fingerprint(found, "memory"))
    ]


def items(found: Lint) -> Iterator[Item]:
    """All findings, in the order of the products; that of the memory last."""
    yield from (item for row in found.products if (item := _item(found, row)))
    yield from _memory(found)


def failing(found: Lint, fail_on: str, known: frozenset[str] = frozenset()) -> list[Row]:
    """The findings that fail a run: at least as bad as ``fail_on``, and not known before."""
    if fail_on not in FAIL_ON:
        raise LintError(f"--fail-on is one of {', '.join(FAIL_ON)}, not '{fail_on}'")
    least = OUTCOMES.index(fail_on)
    bad = [row for row in found.products if OUTCOMES.index(row.outcome) >= least]
    if fail_on in ("unknown", "pads"):
        bad += found.misaligned
    return [row for row in bad if fingerprint(found, row) not in known]


def read_baseline(path: Path) -> frozenset[str]:
    """Raises :class:`LintError` for a file that is none."""
    try:
        data = read_json(path)
    except (OSError, ValueError) as error:
        raise LintError(f"{path}: cannot be read: {why_unreadable(error)}") from None
    listed = data.get("findings") if isinstance(data, dict) else None
    if not isinstance(listed, list) or data.get("schema") != BASELINE:
        raise LintError(f"{path}: is no baseline: write one with --write-baseline")
    return frozenset(map(str, listed))


def write_baseline(path: Path, all_found: Sequence[Lint]) -> None:
    rows = ((one, row) for one in all_found for row in (*one.findings, *one.misaligned))
    listed = sorted({fingerprint(one, row) for one, row in rows})
    write_json(path, {"schema": BASELINE, "findings": listed})


def markdown(all_found: Sequence[Lint]) -> str:
    return "\n".join(line for found in all_found for line in _markdown(found))


def _markdown(found: Lint) -> Iterable[str]:
    def cell(text: object) -> str:
        return one_line(str("–" if text is None else text)).replace("|", "\\|")

    yield f"### {cell(found.model)}: {cell(headline(found))}\n"
    yield f"{cell(_asked(found))}\n"
    yield "| product | N | K | verdict | why |"
    yield "|---|---|---|---|---|"
    for row in found.products:
        cells = (row.name, row.local["N"], row.local["K"], verdict(row), row.why)
        yield f"| {' | '.join(map(cell, cells))} |"
    if found.remedies:
        yield "\n| what to do | then |\n|---|---|"
        yield from (f"| {cell(one.what)} | {one.outcome} |" for one in found.remedies)
    yield from (f"\nNote: {cell(note)}" for note in found.notes)
    yield ""


def github(all_found: Sequence[Lint]) -> str:
    """Workflow commands that GitHub shows beside the file."""

    def escaped(text: str, of_property: bool = False) -> str:
        for bad, good in (("%", "%25"), ("\r", "%0D"), ("\n", "%0A")):
            text = text.replace(bad, good)
        return text.replace(":", "%3A").replace(",", "%2C") if of_property else text

    lines = [
        f"::{GITHUB[LEVELS[item.kind]]} file={escaped(one_line(found.model), True)},"
        f"title={escaped(f'gacprof lint: {item.name}', True)}::{escaped(item.text)}"
        for found in all_found
        for item in items(found)
    ]
    return "\n".join(lines)


def junit(all_found: Sequence[Lint]) -> str:
    """A test suite a config, a test case a product, and one for a memory that is too small."""
    root = Xml.Element("testsuites", name="gacprof lint")
    for found in all_found:
        model, memory = one_line(found.model), _memory(found)
        cases: list[tuple[str, str, str, Item | None]] = [
            (row.name, row.outcome, row.why, _item(found, row)) for row in found.products
        ]
        cases += [(item.name, item.kind, "", item) for item in memory]
        suite = Xml.SubElement(
            root, "testsuite", name=model, tests=str(len(cases)),
            failures=str(sum(item is not None for *_, item in cases)),
            skipped=str(len(found.unknown)),
        )  # fmt: skip
        for name, outcome, why, item in cases:
            case = Xml.SubElement(suite, "testcase", classname=model, name=one_line(name))
            if item:
                failure = Xml.SubElement(case, "failure", type=item.kind, message=item.text)
                failure.text = item.source
            elif outcome == "unknown":
                Xml.SubElement(case, "skipped", message=one_line(why))
    Xml.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + Xml.tostring(root, encoding="unicode")


def sarif(all_found: Sequence[Lint]) -> str:
    """SARIF 2.1.0: a rule a demand, a result a finding."""
    import gacprof

    rules: dict[str, dict[str, Any]] = {}
    results = []
    for found in all_found:
        place = {"physicalLocation": {"artifactLocation": {"uri": one_line(found.model)}}}
        for item in items(found):
            rules[item.rule] = {
                "id": item.rule,
                "shortDescription": {"text": f"{item.kind}: {item.name}"},
                **({"help": {"text": f"source: {item.source}"}} if item.source else {}),
            }
            results.append(
                {
                    "ruleId": item.rule,
                    "level": LEVELS[item.kind],
                    "message": {"text": item.text},
                    "locations": [place],
                    "partialFingerprints": {"gacprofLint/1": item.fingerprint},
                }
            )
    driver = {"name": "gacprof", "version": gacprof.__version__, "rules": list(rules.values())}
    whole = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }
    return json.dumps(whole, indent=1, ensure_ascii=False)


FORMATS: dict[str, Callable[[Sequence[Lint]], str]] = {
    "markdown": markdown, "github": github, "junit": junit, "sarif": sarif,
}  # fmt: skip
