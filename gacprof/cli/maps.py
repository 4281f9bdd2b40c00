"""Verbs about maps. Here: ``map build``, ``show``, ``list``; the rest by what they do."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gacprof.cli import map_choose, map_compare, map_write
from gacprof.cli.map_options import MapName, dims
from gacprof.cli.printing import Json, at_most, complain, percent, print_json, print_table, say

if TYPE_CHECKING:
    from gacprof.cliffmap import CliffMap
    from gacprof.cliffmap.schema import Curve

MORE = "30m"
"""Time to go on with a sweep for, where more blocks may decide."""

app = typer.Typer(help="Build, read and compare cliff maps.", no_args_is_help=True)


@app.command()
def build(
    samples: Annotated[Path, typer.Argument(help="A sweep's folder.")],
    out: Annotated[Path | None, typer.Option(help="Default: cliffmap.json in it.")] = None,
    name: Annotated[str | None, typer.Option(help="Default: the device's name.")] = None,
    as_json: bool = Json,
) -> None:
    """Build the cliff map of a finished or interrupted sweep.

    Exit code 1 where it is written but too noisy to judge by: an A/A floor above 10 %, or more
    than half of its dims undecided with penalties of up to more than 5 tolerances.
    """
    from gacprof.api import build_map

    built = build_map(samples, name)
    target = out or samples / "cliffmap.json"
    built.save(target)
    if as_json:
        print_json({"map": str(target)} | _summary(built))
    else:
        _print_summary(built)
        say(f"map: {target}")
    if built.too_noisy:
        complain(f"too noisy to judge by: {built.too_noisy}. Go on with '{_more(samples, built)}'")
        raise typer.Exit(1)


def _more(samples: Path, built: CliffMap) -> str:
    """The command that measures more of the same sweep."""
    folder = samples if samples.is_dir() else samples.parent
    device = " --device cpu" if built.environment.kind == "cpu" else ""
    return f"gacprof sweep --resume --out {shlex.quote(str(folder))}{device} --budget {MORE}"


@app.command()
def show(
    cliff_map: MapName,
    operator: Annotated[str | None, typer.Option("--op", help="Only this operator.")] = None,
    axis: Annotated[str | None, typer.Option(help="Only this axis.")] = None,
    as_json: bool = Json,
) -> None:
    """Print a map: its provenance, and per axis its frontier, safe dims and cliffs."""
    from gacprof.cliffmap import CliffMap

    loaded = CliffMap.load(cliff_map)
    curves = [c for c in loaded.curves if operator in (None, c.operator) and axis in (None, c.axis)]
    if as_json:
        data = loaded.as_dict()
        wanted = {c.identity for c in curves}
        pairs = zip(loaded.curves, data["curves"], strict=True)
        print_json(data | {"curves": [d for c, d in pairs if c.identity in wanted]})
        return
    _print_summary(loaded)
    if operator is None and axis is None:
        _print_curves(loaded)
    elif not curves:
        held = sorted({f"{c.operator} over {c.axis}" for c in loaded.curves})
        say(f"no such curve; the map has {', '.join(held)}")
    for curve in curves if operator or axis else ():
        _print_curve(curve)


@app.command("list")
def list_maps(
    files: Annotated[
        list[str] | None, typer.Argument(metavar="[FILE]…", help="Maps of your own, listed too.")
    ] = None,
    as_json: bool = Json,
) -> None:
    """List the maps that ship with gacprof, with provenance and age."""
    from gacprof.cliffmap import CliffMap, shipped_maps

    maps = [CliffMap.load(name) for name in dict.fromkeys([*shipped_maps(), *(files or ())])]
    found = [_summary(loaded) for loaded in maps]
    if as_json:
        print_json(found)
        return
    rows = [
        (
            s["name"], s["device"], s["provenance"], s["created"][:10], _age(s["age_days"]),
            s["curves"], s["points"], percent(s["noise_floor"]),
            s["citation"] or _stack(s["stack"]),
        )
        for s in found
    ]  # fmt: skip
    columns = (
        "map", "device", "provenance", "created", "age", "curves", "points", "noise floor",
        "source or stack",
    )  # fmt: skip
    print_table("", columns, rows)


def _summary(loaded: CliffMap) -> dict[str, Any]:
    from gacprof.cliffmap.catalogue import describe

    file = loaded.file
    about = describe(loaded)
    return {
        **about,
        "arch": file.device.arch,
        "source": file.provenance.source,
        "citation": file.provenance.citation,
        "cliffs": sum(len(c.cliffs) for c in file.curves),
        "noise_floor": about.pop("floor"),
        "too_noisy": loaded.too_noisy,
        **_verdicts(loaded),
    }


def _verdicts(loaded: CliffMap) -> dict[str, Any]:
    """Dims by verdict over all curves, and the tolerances that they were judged by."""
    counts: dict[str, Any] = {
        verdict: sum(len(getattr(curve, verdict)) for curve in loaded.curves)
        for verdict in ("safe", "misaligned", "undecided")
    }
    return counts | {"tolerances": sorted({curve.tolerance for curve in loaded.curves})}


def _age(days: int | None) -> str | None:
    return None if days is None else "today" if days < 1 else f"{days} d"


def _stack(stack: Mapping[str, str | None]) -> str:
    return ", ".join(f"{name} {version}" for name, version in stack.items() if version)


def _print_summary(loaded: CliffMap) -> None:
    s = _summary(loaded)
    noise = loaded.file.noise
    floor = (
        f"unknown ({noise.reason})"
        if noise.floor is None
        else f"{percent(noise.floor)} ({noise.pairs} A/A pairs, {noise.processes} processes)"
    )
    age = f", {_age(s['age_days'])} old" if s["age_days"] else ""
    say(f"{s['name']}: {s['device']} ({s['arch']}), {s['provenance']} {s['created'][:10]}{age}")
    for words, text in (
        ("source", s["source"]), ("citation", s["citation"]), ("stack", _stack(s["stack"])),
    ):  # fmt: skip
        if text:
            say(f"{words}: {text}")
    say(f"{s['curves']} curves, {s['points']} points, {s['cliffs']} cliffs; noise floor {floor}")
    tolerance = " or ".join(f"{100 * t:g} %" for t in s["tolerances"]) or "unknown"
    say(
        f"dims, by a tolerance of {tolerance}: {s['safe']} safe, {s['misaligned']} misaligned, "
        f"{s['undecided']} undecided"
    )
    if s["too_noisy"]:
        say(f"too noisy to judge by: {s['too_noisy']}")
    for note in loaded.file.provenance.notes:
        say(f"note: {note}")
    for check in loaded.file.checks:
        say(f"{'check' if check.passed else 'check failed'}: {check.name}: {check.told}")


def _print_curves(loaded: CliffMap) -> None:
    """Every curve in one line."""
    from gacprof.cliffmap.catalogue import summarise

    rows = [
        (
            s.curve, f"{s.first} … {s.last}", s.measured, s.period, s.cliffs,
            percent(s.largest_jump, signed=True), percent(s.worst_penalty), s.safe, s.misaligned,
            s.undecided, dims(s.frontier[-8:]),
        )
        for s in summarise(loaded)
    ]  # fmt: skip
    columns = (
        "curve", "dims", "measured", "period", "cliffs", "largest", "worst penalty",
        "safe", "misaligned", "undecided", "frontier (widest)",
    )  # fmt: skip
    print_table("", columns, rows)
    say("more of a curve: --op and --axis")


def _print_curve(curve: Curve) -> None:
    say()
    say(curve.identity)
    say(
        f"  safe up to a penalty of {percent(curve.tolerance)}; "
        f"no cliff below {percent(curve.floor)}"
    )
    say(f"  frontier: {dims(curve.frontier)}")
    say(f"  safe: {dims(curve.safe)}")
    if curve.misaligned:
        say(f"  misaligned: {dims(curve.misaligned)}")
    if curve.undecided:
        say(f"  undecided: {_undecided(curve)}")
    if curve.period is not None:
        classes = " > ".join(f"{dims(c.remainders)} ({c.ratio:.2f}×)" for c in curve.period.classes)
        say(f"  period {curve.period.modulus}: d mod {curve.period.modulus} in {classes}")
    for d, why in curve.coverage.failed.items():
        say(f"  not measured: {d}: {why}")
    for cliff in curve.cliffs:
        cause = f"  {cliff.cause}" if cliff.cause else ""
        say(f"  cliff {cliff.before} → {cliff.after}: {percent(cliff.jump, signed=True)}{cause}")


def _undecided(curve: Curve) -> str:
    """The undecided dims, and what their penalties may be."""
    bounds = dict(zip(curve.points.d, curve.points.penalty_high, strict=True))
    bounded = [b for d in curve.undecided if (b := bounds[d]) is not None]
    open_ones = len(curve.undecided) - len(bounded)
    told = [f"penalties of at most {at_most(max(bounded))}"] if bounded else []
    if open_ones:
        told.append(f"{open_ones} with nothing larger that would settle it")
    return f"{dims(curve.undecided)} ({', '.join(told)})"


for group in (map_choose, map_compare, map_write):
    group.register(app)
