"""Verbs that make files: ``map rules`` and ``agree``, ``map table``, ``export``, ``figure``."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from gacprof.cli.options import MapName, grouped, load_maps, load_sources
from gacprof.cli.printing import Json, emit, print_json, print_table, say, say_notes
from gacprof.cliffmap.request import CurveRequest, FigureRequest
from gacprof.core.errors import MapError, ReportError
from gacprof.core.files import beginning, refuse_to_replace
from gacprof.core.formatting import percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gacprof.cliffmap import CliffMap
    from gacprof.rules.agreement import Agreement, CurveAgreement, Share
    from gacprof.rules.table import RuleTable


SHOWN = 12
"""Counter-examples of a curve that are listed."""


def rules(
    gpu: Annotated[str, Option(help="a100, a10, l4, l40s, rtx4090, h100, h100-pcie, h200, b200 …")],
    out: Annotated[Path, Option(help="The rule table's file.")],
    torch: Annotated[
        str | None,
        Option(help="The PyTorch release to be served with, as 2.11. Default: the newest known."),
    ] = None,
    dtype: Annotated[
        str | None,
        Option(
            help="float16, bfloat16, float8_e4m3fn …; several, by commas. Default: all that the "
            "GPU has.",
            metavar="DTYPE,…",
        ),
    ] = None,
    checkpoint: Annotated[
        str | None,
        Option("--for", help="Only the dtypes that this checkpoint's products are computed in."),
    ] = None,
    name: Annotated[str | None, Option(help="Default: GPU-rules.")] = None,
    as_json: bool = Json,
) -> None:
    """Write the rule table of a GPU that is not at hand: which sizes its kernels serve, in tiers,
    each with rule, source and basis.

    It answers any size of any shape. Nothing is measured and no latency is given.
    """
    from gacprof.checkpoint.products import LocalProducts
    from gacprof.diagnosing.sources import NEWEST
    from gacprof.rules.table import RuleTable
    from gacprof.rules.target import target

    about = target(gpu, torch or NEWEST)
    refuse_to_replace(out, "rule table", is_rule_table)
    dtypes = [part.strip() for part in dtype.split(",")] if dtype else []
    if checkpoint is not None and not dtypes:
        from gacprof.checkpoint import inventory_for

        held = LocalProducts(inventory_for(checkpoint)).dtypes
        dtypes = [d for d in held if d in about.chip.tiers] or held
    made = RuleTable(about, dtypes, name or "")
    made.save(out)
    if as_json:
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
    from gacprof.rules.gemm import paper

    alike: dict[tuple[Any, ...], list[str]] = {}
    for tier in table.tiers:
        row = tier.operator, tier.axis, tier.tier, tier.sizes, tier.mechanism, tier.relative
        alike.setdefault(row, []).append(tier.dtype)
    rows = [
        (f"{operator} {axis}", ", ".join(dtypes), tier, sizes, _relative(relative), mechanism)
        for (operator, axis, tier, sizes, mechanism, relative), dtypes in alike.items()
    ]
    columns = ("axis", "dtypes", "tier", "sizes", "cost", "served by")
    print_table(table.frame_title(), columns, rows)
    if every:
        notes = [
            f"{rule.says} [{rule.basis}: {rule.source}]"
            for tier in table.tiers
            for rule in (*tier.rules, *tier.doubts)
        ]
        say_notes(list(dict.fromkeys(notes)))
    say_notes(table.notes)
    say(f"cost: beside tier 1, published for K alone: {paper(table.target)}")
    if not every:
        say("which rule and source each tier rests on: gacprof map show FILE --all")


def _relative(ratio: float | None) -> str | None:
    return None if ratio is None else f"×{ratio:g}{' (K)' if ratio > 1 else ''}"


def agree(
    rules: Annotated[str, Argument(metavar="RULES", help="A rule table's file.")],
    measured: Annotated[str, Argument(metavar="MEASURED", help="A measured or published map.")],
    as_json: bool = Json,
) -> None:
    """Say how far rules hold beside a measured map of the same architecture: precision and recall
    of the safe dims and of the frontier, and every counter-example."""
    from gacprof.rules.agreement import agree as compare
    from gacprof.rules.table import RuleTable

    (known,) = load_maps(measured)
    emit(compare(RuleTable.load(rules), known), as_json, _print_agreement)


def _print_agreement(found: Agreement) -> None:
    from gacprof.rules.table import BASIS

    rows = [
        (f"{operator} {axis}", count, *_shares(safe), *_shares(frontier))
        for (operator, axis), (count, safe, frontier) in found.by_axis().items()
    ]
    columns = ("axis", "dims", "safe: precision", "recall", "frontier: precision", "recall")
    print_table(f"{found.rules} ({BASIS}) beside {found.measured}", columns, rows)
    for curve in found.curves:
        _print_counter_examples(curve)
    if found.without:
        say(f"no rule for {'; '.join(found.without)}")
    say_notes(found.notes)
    say(
        "precision: of the dims that rules name, those that the measurement does too; recall: the "
        "other way round, those that rules leave undecided too"
    )


def _shares(share: Share) -> tuple[str, str]:
    """``95 % (38/40)``, twice."""
    return (
        f"{percent(share.precision) or '–'} ({share.agreed}/{share.by_rules})",
        f"{percent(share.recall) or '–'} ({share.agreed}/{share.measured})",
    )


def _print_counter_examples(curve: CurveAgreement) -> None:
    if not curve.counter_examples:
        return
    say(f"{curve.curve}: {len(curve.counter_examples)} of {curve.compared} dims disagree")
    for one in curve.counter_examples[:SHOWN]:
        say(
            f"  {one.d}: {one.by_rules} by rules (tier {one.tier}), {one.measured} as measured, "
            f"penalty {percent(one.penalty)}"
        )
    left = len(curve.counter_examples) - SHOWN
    if left > 0:
        say(f"  … and {left} more (--json has all)")


Out = Annotated[Path | None, Option(help="Write there instead of printing.")]


@grouped
def table(
    cliff_map: MapName,
    which: CurveRequest,
    *,
    name: Annotated[
        str, Option("--table", help="constraints, or classes: residue classes and their kernels.")
    ] = "constraints",
    form: Annotated[str, Option("--format", help="markdown, latex, csv or html.")] = "markdown",
    out: Out = None,
    as_json: bool = Json,
) -> None:
    """Print what the map's curves ask of their dims, and what it costs not to comply."""
    from gacprof.report.tables import map_table, render, rule_table
    from gacprof.rules.table import RuleTable

    (loaded,) = load_sources(cliff_map)
    if isinstance(loaded, RuleTable):
        made = rule_table(loaded)
    else:
        made = map_table(loaded, name, which.chosen(loaded))
    text = render(made, form)
    if out is not None:
        _write(text, out, form, quiet=as_json)
    if as_json:
        print_json(made.as_dict(), "table")
    elif out is None:
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
    (loaded,) = load_sources(cliff_map)
    form = "json" if as_json else form
    if form == "settings" and out is None and hasattr(loaded, "curves"):
        _print_settings(loaded)
        return
    text = _exported(loaded, form)
    if out is None:
        print(text, end="")
    else:
        _write(text, out, form)


def _exported(loaded: Any, form: str) -> str:
    from gacprof.cliffmap.export import export as exported
    from gacprof.cliffmap.export import rows, settings_rows
    from gacprof.rules.table import RuleTable

    if isinstance(loaded, RuleTable):
        if form == "csv":
            return _csv([dict(row) for row in loaded.frame_rows()])
        if form == "settings":
            raise MapError(f"'{loaded.name}' is {loaded.basis}: a compressor's value needs latency")
        return json.dumps(loaded.as_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"

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


@grouped
def figure(asked: FigureRequest, *, as_json: bool = Json) -> None:
    """Draw a map: the staircase of one axis, two devices side by side, or a heat map. Writes SVG
    and PNG."""
    from gacprof.report.figures import side_by_side, staircase
    from gacprof.report.figures_style import save

    maps = load_maps(asked.cliff_map, *asked.others)
    if asked.heat is not None:
        drawn = _heat(maps, asked.heat, asked)
    else:
        operator, axis, about = asked.of(maps)
        if len(maps) > 1:
            drawn = side_by_side(maps, operator, axis, **about)
        else:
            drawn = staircase(maps[0], maps[0].curve(operator, axis, **about))
    stem = asked.out.with_suffix("") if asked.out.suffix in (".svg", ".png") else asked.out
    written = save(drawn, stem)
    if as_json:
        print_json({"files": [str(path) for path in written]}, "figures")
        return
    for path in written:
        say(str(path))


def _heat(maps: list[CliffMap], heat: str, which: FigureRequest) -> Figure:
    from gacprof.report.heat_map import heat_map

    across, _, up = (part.strip() for part in heat.partition(","))
    if not across or not up or across == up:
        raise ReportError(f"--heat takes two dims, as K,N, not '{heat}'")
    if which.axis or len(maps) > 1:
        raise ReportError("--heat draws one map over its own two dims: leave out --axis and --with")
    operator = which.operator or "linear"
    return heat_map(maps[0], operator, (across, up), **which.about(maps, operator, across))


def _write(text: str, out: Path, form: str, quiet: bool = False) -> None:
    """Another table or export may be there already, of the same form and the same first line."""
    from gacprof.core.files import write_text

    def alike(path: Path) -> bool:
        return beginning(path).splitlines()[:1] == text.encode().splitlines()[:1]

    refuse_to_replace(out, f"{form} of a map", alike)
    try:
        write_text(out, text)
    except OSError as error:
        raise MapError(f"cannot write {out}: {error.strerror or error}") from None
    if not quiet:
        say(f"{form}: {out}")
