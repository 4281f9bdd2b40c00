"""Verbs that make files: ``map rules``, ``table``, ``export``, ``figure``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gacprof.api.gpus import RulesRequest
from gacprof.cli.options import Output, from_requests
from gacprof.cli.printing import emit, print_json, print_table, say, say_notes
from gacprof.cliffmap.request import FigureRequest, MapExportRequest, TableRequest
from gacprof.core.errors import MapError
from gacprof.core.files import beginning, refuse_to_replace, write_text
from gacprof.core.formatting import percent
from gacprof.core.request import option

if TYPE_CHECKING:
    from gacprof.cliffmap import CliffMap
    from gacprof.rules.table import RuleTable


class RulesFile(Output):
    """Where a rule table is written."""

    out: Path = option(read=Path, help="The rule table's file.")


@from_requests
def rules(asked: RulesRequest, output: RulesFile) -> None:
    """Write the rule table of a GPU that is not at hand.

    It has the sizes that the GPU's kernels serve, in tiers, with rule, source and basis, and
    answers any size of any shape. Nothing is measured and no latency is given.
    """
    import gacprof

    out = output.out
    made = gacprof.rule_table(asked)
    refuse_to_replace(out, "rule table", is_rule_table)
    made.save(out)
    if output.as_json:
        print_json({"map": str(out)} | made.as_dict())
        return
    print_rules(made)
    say(f"rule table: {out}")


def is_rule_table(path: Path) -> bool:
    """Whether a file begins as a rule table does."""
    from gacprof.rules.table import SCHEMA

    return SCHEMA.encode() in beginning(path)


def print_rules(table: RuleTable, every: bool = False) -> None:
    """Sizes by tier, equal dtypes in one row; with ``every`` the rules and their sources too."""
    from gacprof.reporting.tables import rule_table
    from gacprof.rules.gemm import published

    shown = rule_table(table)
    print_table(table.frame_title(), shown.headings, shown.texts())
    if every:
        say_notes(shown.notes)
    say_notes(table.notes)
    say(f"cost: {published(table.target)}")
    if not every:
        say("which rule and source each tier rests on: gacprof map show FILE --all")


@from_requests
def table(asked: TableRequest, output: Output) -> None:
    """Print what a map asks of sizes, as a table."""
    import gacprof
    from gacprof.reporting.tables import render

    made = gacprof.map_table(asked)
    text = render(made, asked.form)
    if asked.out is not None:
        _write(text, asked.out, asked.form, quiet=output.as_json)
    if output.as_json:
        print_json(made.as_dict(), "table")
    elif asked.out is None:
        print(text, end="")
        if asked.form == "csv":  # it has no place for them
            print("".join(f"{note}\n" for note in made.notes), end="", file=sys.stderr)


@from_requests
def export(asked: MapExportRequest, output: Output) -> None:
    """Print safe sizes and settings that compressors take."""
    import gacprof

    form, out = "json" if output.as_json else asked.form, asked.out
    if form == "settings" and out is None:
        loaded: Any = gacprof.open_source(asked.cliff_map)
        if not loaded.tiers:
            _print_settings(loaded)
            return
    text = gacprof.export_map(asked.cliff_map, form=form)
    if out is None:
        print(text, end="")
    else:
        _write(text, out, form)


def _print_settings(loaded: CliffMap) -> None:
    from gacprof.cliffmap.export import settings_of

    scopes = settings_of(loaded)
    if not scopes:
        say("this map has no linear curve over K or N that could judge a modulus: sweep some")
    for scope in scopes:
        rows = [
            (
                t["tool"], t["option"], t["value"], t["rounds"], percent(t["loses"]),
                t["default"], percent(t["default_loses"]),
            )
            for t in scope["tools"]
        ]  # fmt: skip
        over = " and ".join(f"{axis} {d[0]} to {d[1]}" for axis, d in scope["sizes"].items())
        words = f"{scope['dtype']}, M = {scope['M']}, measured over {over} alone"
        columns = ("tool", "option", "value", "rounds", "loses", "default", "it loses")
        print_table(words, columns, rows)


@from_requests
def figure(asked: FigureRequest, output: Output) -> None:
    """Draw a map, as SVG and PNG.

    The staircase of one axis, or several devices side by side."""
    import gacprof

    emit(gacprof.draw_map(asked), output.as_json, print_files)


def print_files(found: Any) -> None:
    for path in found.files:
        say(str(path))


def _write(text: str, out: Path, form: str, quiet: bool = False) -> None:
    """Another table or export may be there already, of the same form and the same first line."""

    def alike(path: Path) -> bool:
        return beginning(path).splitlines()[:1] == text.encode().splitlines()[:1]

    refuse_to_replace(out, f"{form} of a map", alike)
    try:
        write_text(out, text)
    except OSError as error:
        raise MapError(f"cannot write {out}: {error.strerror or error}") from None
    if not quiet:
        say(f"{form}: {out}")
