"""A report as plain lines, and as SARIF 2.1.0 for what shows findings beside a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gacprof.core.files import write_json
from gacprof.core.formatting import percent
from gacprof.extras.lint.report import LintReport, ProductVerdict

LEVELS = {
    "pads": "note",
    "misaligned": "note",
    "unknown": "note",
    "falls back": "warning",
    "wrong": "error",
    "refused": "error",
}
"""SARIF's levels (SARIF 2.1.0, 3.27.10)."""


def verdict(row: ProductVerdict) -> str:
    """A product's outcome in a few words: ``pads to 256 (+33.3 %)``."""
    if row.outcome == "pads" and row.pads_to:
        sizes = {"N": row.N, "K": row.K, "global": row.size}
        grown = 1.0
        for axis, size in row.pads_to.items():
            grown *= size / (sizes[axis] or size)
        targets = " × ".join(str(size) for size in row.pads_to.values())
        return f"pads to {targets} (+{percent(grown - 1)})"
    if row.outcome == "wrong":
        return "loads but wrong"
    if row.outcome == "ok" and row.alignment == "misaligned":
        return "ok, misaligned"
    return row.outcome


def text(report: LintReport) -> str:
    """The report as lines: a headline, a product a line, what would make it better, what is
    missing."""
    ranks = f"tp {report.tp}, ep {report.ep}" + (f", dp {report.dp}" if report.dp > 1 else "")
    where = f"{report.engine} {report.version} on {report.gpu}, {ranks}, {report.quantisation}"
    lines = [f"{plain_line(report.model)}: {report.summary} ({where})", ""]
    rows = [("product", "N", "K", "verdict", "why")]
    for row in report.products:
        why = row.reason or row.kernel
        rows.append((row.product, str(row.N or "–"), str(row.K or "–"), verdict(row), why))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for product, n, k, said, why in rows:
        cells = (product.ljust(widths[0]), n.rjust(widths[1]), k.rjust(widths[2]))
        lines.append(plain_line("  ".join((*cells, said.ljust(widths[3]), why)).rstrip()))
    if report.remedies:
        lines += ["", "tried, and better:"]
    for remedy in report.remedies:
        mended = f" ({', '.join(remedy.mended)})" if remedy.mended else ""
        lines.append(f"  {remedy.change}: {remedy.outcome}{mended}")
    lines += ["", *_sources(report)]
    if report.missing:
        missing = ", ".join(report.missing)
        lines.append(f"the config doesn't say {missing}: what needs it isn't judged")
    lines += report.warnings
    return "\n".join(lines).rstrip()


def _sources(report: LintReport) -> list[str]:
    """The sources of the findings, each once."""
    findings = [row for row in report.products if row.reason and row.source]
    named = {f"{row.requirement}: {row.source}" + _sureness(row) for row in findings}
    return [f"source of {source}" for source in sorted(named)]


def _sureness(row: ProductVerdict) -> str:
    since = f", since {row.since}" if row.since else ""
    sure = "" if row.sure == "high" else f" ({row.sure} confidence)"
    return f"{since}{sure}"


def plain_line(line: str) -> str:
    """One line of a stranger's text: control characters are escaped."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in line)


def sarif(reports: Sequence[LintReport]) -> dict[str, Any]:
    """Reports as a SARIF log: a rule a requirement, a result a finding."""
    from gacprof import __version__

    rules: dict[str, dict[str, Any]] = {}
    results = []
    for report in reports:
        place = {"physicalLocation": {"artifactLocation": {"uri": plain_line(report.model)}}}
        for row in report.products:
            kind = "misaligned" if row.alignment == "misaligned" else row.outcome
            if kind == "ok":
                continue
            rule = f"{report.engine}/{row.requirement or 'unread'}"
            rules[rule] = {"id": rule, "shortDescription": {"text": f"{kind}: {row.product}"}}
            if row.source:
                rules[rule]["help"] = {"text": f"source: {row.source}"}
            where = f"{report.engine} {report.version}, tp {report.tp}"
            said = f"{row.product}: {verdict(row)} ({where}): {row.reason}"
            message = {"text": plain_line(said)}
            results.append(
                {"ruleId": rule, "level": LEVELS[kind], "message": message, "locations": [place]}
            )
    driver = {"name": "gacprof", "version": __version__, "rules": list(rules.values())}
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }


def write_sarif(path: Path, reports: Sequence[LintReport]) -> None:
    """Write reports as a SARIF log, whole or not at all."""
    write_json(Path(path), sarif(reports))
