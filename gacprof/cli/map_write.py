"""Verbs that make files of a map: ``map table``, ``map export``, ``map figure``."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from gacprof.cli import options
from gacprof.cli.options import Axis, Dtype, Fixed, Flags, MapName, Operator
from gacprof.cli.printing import Json, print_json, print_table, say
from gacprof.core.errors import MapError, ReportError
from gacprof.core.formatting import percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gacprof.cliffmap import CliffMap

Out = Annotated[Path | None, Option(help="Write there instead of printing.")]


def table(
    cliff_map: MapName,
    name: Annotated[
        str, Option("--table", help="constraints, or classes: residue classes and their kernels.")
    ] = "constraints",
    operator: Operator = None,
    axis: Axis = None,
    form: Annotated[str, Option("--format", help="markdown, latex, csv or html.")] = "markdown",
    out: Out = None,
    as_json: bool = Json,
) -> None:
    """Print what the map's curves ask of their dims, and what it costs not to comply."""
    from gacprof.report.tables import render
    from gacprof.report.tables_map import map_table

    (loaded,) = options.load_maps(cliff_map)
    curves = [
        curve for curve in loaded.curves
        if operator in (None, curve.operator) and axis in (None, curve.axis)
    ]  # fmt: skip
    if not curves:
        raise MapError(f"the map '{loaded.name}' has no such curve: 'gacprof map show' lists them")
    made = map_table(loaded, name, curves)
    text = render(made, form)
    if out is not None:
        _write(text, out, form)
    if as_json:
        print_json(made.as_dict(), "table")
    elif out is not None:
        say(f"{form}: {out}")
    else:
        print(text, end="")
        if form == "csv":  # it has no place for them
            print("".join(f"{note}\n" for note in made.notes), end="", file=sys.stderr)


def export(
    cliff_map: MapName,
    form: Annotated[
        str,
        Option(
            "--format",
            help="json: everything; csv: one row a dim; settings: the compressors' options.",
        ),
    ] = "json",
    out: Out = None,
    as_json: Annotated[bool, Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Print what a compressor can be fed: safe dims by axis, and ready values for its option."""
    (loaded,) = options.load_maps(cliff_map)
    form = "json" if as_json else form
    if form == "settings" and out is None:
        _print_settings(loaded)
        return
    text = _exported(loaded, form)
    if out is None:
        print(text, end="")
        return
    _write(text, out, form)
    say(f"{form}: {out}")


def _exported(loaded: CliffMap, form: str) -> str:
    from gacprof.cliffmap.export import export as exported
    from gacprof.cliffmap.export import rows, settings_rows

    if form == "json":
        data = exported(loaded)
        return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    if form == "csv":
        return _csv(rows(loaded))
    if form == "settings":
        return _csv(settings_rows(loaded))
    raise MapError(f"no export format '{form}' (there are json, csv, settings)")


def _csv(rows: list[dict[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


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
        words = f"{scope['dtype']}, M = {scope['M']}, over {' and '.join(scope['axes'])}"
        columns = ("tool", "option", "value", "rounds", "loses", "default", "it loses")
        print_table(words, columns, rows)


def figure(
    cliff_map: MapName,
    out: Annotated[Path, Option(help="Stem: OUT.svg and OUT.png are written.")],
    operator: Operator = None,
    axis: Axis = None,
    dtype: Dtype = None,
    fixed: Fixed = None,
    flag: Flags = None,
    beside: Annotated[
        list[str] | None, Option("--with", metavar="MAP", help="Another map beside it; repeatable.")
    ] = None,
    heat: Annotated[
        str | None, Option(metavar="X,Y", help="Instead: penalty over two dims, as K,N.")
    ] = None,
    as_json: bool = Json,
) -> None:
    """Draw a map: the staircase of one axis, two devices side by side, or a heat map. Writes SVG
    and PNG."""
    from gacprof.report.figures_style import save

    maps = options.load_maps(cliff_map, *(beside or ()))
    if heat is not None:
        drawn = _heat(maps, heat, operator or "linear", axis, dtype, fixed, flag)
    else:
        drawn = _staircase(maps, operator, axis, dtype, fixed, flag)
    if out.suffix in (".svg", ".png"):
        out = out.with_suffix("")
    written = save(drawn, out)
    if as_json:
        print_json({"files": [str(path) for path in written]}, "figures")
        return
    for path in written:
        say(str(path))


def _heat(
    maps: list[CliffMap], heat: str, operator: str, axis: str | None,
    dtype: str | None, fixed: list[str] | None, flag: list[str] | None,
) -> Figure:  # fmt: skip
    from gacprof.report.heat_map import heat_map

    across, _, up = (part.strip() for part in heat.partition(","))
    if not across or not up or across == up:
        raise ReportError(f"--heat takes two dims, as K,N, not '{heat}'")
    if axis or len(maps) > 1:
        raise ReportError("--heat draws one map over its own two dims: leave out --axis and --with")
    sizes = options.known_sizes(maps, operator, across, fixed)
    return heat_map(maps[0], operator, (across, up), dtype, options.flags(flag), **sizes)


def _staircase(
    maps: list[CliffMap], operator: str | None, axis: str | None,
    dtype: str | None, fixed: list[str] | None, flag: list[str] | None,
) -> Figure:  # fmt: skip
    from gacprof.report.figures import side_by_side, staircase

    op, ax = options.one_axis(operator, axis)
    sizes = options.known_sizes(maps, op, ax, fixed)
    if len(maps) > 1:
        return side_by_side(maps, op, ax, dtype, options.flags(flag), **sizes)
    return staircase(maps[0], maps[0].curve(op, ax, dtype, options.flags(flag), **sizes))


def _write(text: str, out: Path, form: str) -> None:
    """Another table or export may be there already, of the same form and the same first line."""
    from gacprof.core.files import beginning, refuse_to_replace, write_text

    def alike(path: Path) -> bool:
        return beginning(path).splitlines()[:1] == text.encode().splitlines()[:1]

    refuse_to_replace(out, f"{form} of a map", alike)
    try:
        write_text(out, text)
    except OSError as error:
        raise MapError(f"cannot write {out}: {error.strerror or error}") from None
