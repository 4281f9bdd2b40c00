"""What continuous integration needs: which findings fail a run, a baseline of known ones, and
GitHub's annotations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from gacprof.core.errors import LintError, why_unreadable
from gacprof.core.files import read_json, write_json
from gacprof.core.formatting import percent, visible
from gacprof.demands.table import OUTCOMES
from gacprof.linting.verdict import Lint, Row

FAIL_ON = ("unknown", "pads", "falls_back", "wrong", "refused")
BASELINE = "gacprof.lint-baseline/1"
LEVELS = {
    "pads": "notice", "misaligned": "notice", "falls_back": "warning", "wrong": "error",
    "refused": "error",
}  # fmt: skip
"""GitHub's levels of annotations."""


def verdict(row: Row) -> str:
    """A row's outcome in a few words: ``pads to 256 (+33.3 %)``."""
    if row.outcome == "pads" and row.padded_to:
        to = " × ".join(str(size) for size in row.padded_to.values())
        return f"pads to {to} ({percent(row.extra, signed=True)})"
    if row.outcome == "falls_back":
        return f"falls back to {row.kernel}" if row.kernel else "falls back"
    if row.outcome == "ok" and (row.tier or 1) > 1:
        return "misaligned"
    return {"wrong": "loads but wrong"}.get(row.outcome, row.outcome)


def headline(found: Lint) -> str:
    """The outcome in a few words, and what is behind it."""
    said = found.outcome.replace("_", " ")
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
    ranks = f"tp{found.tp}{'+ep' if found.ep else ''}"
    asked = (Path(found.model).name, found.engine, found.gpu, found.quant, ranks)
    return "|".join(map(str, (*asked, row.name, row.axis, row.size, row.outcome)))


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


def github(all_found: Sequence[Lint]) -> str:
    """Workflow commands that GitHub shows beside the file."""

    def escaped(text: str, of_property: bool = False) -> str:
        for bad, good in (("%", "%25"), ("\r", "%0D"), ("\n", "%0A")):
            text = text.replace(bad, good)
        return text.replace(":", "%3A").replace(",", "%2C") if of_property else text

    return "\n".join(
        f"::{level} file={escaped(one_line(found.model), True)},"
        f"title={escaped(one_line(f'gacprof lint: {name}'), True)}::{escaped(one_line(text))}"
        for found in all_found
        for level, name, text in _annotations(found)
    )


def _annotations(found: Lint) -> Iterator[tuple[str, str, str]]:
    """(level, name, text) of each finding in the order of the products; that of the memory last."""
    ranks = f"tp {found.tp}{' with expert parallelism' if found.ep else ''}"
    asked = f"{found.engine} {found.version}, {found.quant}, {ranks}, {found.gpu}"
    for row in found.products:
        said = verdict(row)
        level = LEVELS.get(said if said == "misaligned" else row.outcome)
        if level is not None:
            why = f": {row.why}" if row.why else ""
            yield level, row.name, f"{row.name}: {said} ({asked}){why}"
    if found.too_large:
        yield "warning", "memory", f"memory: {found.too_large} ({asked})"
