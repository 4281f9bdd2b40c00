"""Verbs about maps: ``map build``, ``show``, ``list``, ``candidates``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gacprof.cli.printing import (
    Json,
    microseconds,
    percent,
    print_json,
    print_table,
    say,
)

app = typer.Typer(help="Build, read and compare cliff maps.", no_args_is_help=True)

MapName = Annotated[str, typer.Argument(help="A shipped map's name, or a file.")]


@app.command()
def build(
    samples: Annotated[Path, typer.Argument(help="A sweep's folder.")],
    out: Annotated[Path | None, typer.Option(help="Default: cliffmap.json in it.")] = None,
    name: Annotated[str | None, typer.Option(help="Default: the device's name.")] = None,
    as_json: bool = Json,
) -> None:
    """Build the cliff map of a finished or interrupted sweep."""
    from gacprof.sweeping import build_map_of

    built = build_map_of(samples, name)
    target = out or samples / "cliffmap.json"
    built.save(target)
    if as_json:
        print_json({"map": str(target)} | _summary(built))
        return
    _print_summary(built)
    say(f"map: {target}")


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
    for curve in curves:
        _print_curve(curve)


@app.command("list")
def list_maps(as_json: bool = Json) -> None:
    """List the maps that ship with gacprof, with provenance and age."""
    from gacprof.cliffmap import CliffMap, shipped_maps

    maps = [CliffMap.load(name) for name in shipped_maps()]
    if as_json:
        print_json([_summary(m) for m in maps])
        return
    rows = []
    for loaded in maps:
        s = _summary(loaded)
        rows.append((s["name"], s["device"], s["provenance"], s["created"][:10], s["curves"]))
    print_table("", ("map", "device", "provenance", "created", "curves"), rows)


@app.command()
def candidates(
    cliff_map: MapName,
    operator: Annotated[str, typer.Option("--op", help="linear, attention …")],
    axis: Annotated[str, typer.Option(help="The operator's axis, such as K or head_dim.")],
    near: Annotated[int, typer.Option(min=1, help="The dim that a compressor chose.")],
    dtype: Annotated[str | None, typer.Option(help="Default: what the map holds.")] = None,
    count: Annotated[int, typer.Option(min=1, help="How many, the nearest first.")] = 6,
    as_json: bool = Json,
) -> None:
    """Print the safe dims near one, with their latency and penalty."""
    from gacprof.cliffmap import CliffMap

    loaded = CliffMap.load(cliff_map)
    found = loaded.candidates(operator, axis=axis, near=near, dtype=dtype, count=count)
    if as_json:
        print_json([candidate.as_dict() for candidate in found])
        return
    rows = [(c.d, microseconds(c.latency_us), percent(c.penalty)) for c in found]
    print_table(f"safe {axis} of {operator} near {near}", (axis, "latency", "penalty"), rows)


def _summary(loaded: Any) -> dict[str, Any]:
    file = loaded.file
    return {
        "name": file.name,
        "device": file.device.name,
        "arch": file.device.arch,
        "provenance": file.provenance.kind,
        "created": file.provenance.created,
        "source": file.provenance.source,
        "curves": len(file.curves),
        "points": sum(len(c.points.d) for c in file.curves),
        "cliffs": sum(len(c.cliffs) for c in file.curves),
        "noise_floor": file.noise.floor,
    }


def _print_summary(loaded: Any) -> None:
    s = _summary(loaded)
    floor = percent(s["noise_floor"]) or f"unknown ({loaded.file.noise.reason})"
    say(f"{s['name']}: {s['device']} ({s['arch']}), {s['provenance']} {s['created'][:10]}")
    if s["source"]:
        say(f"source: {s['source']}")
    say(f"{s['curves']} curves, {s['points']} points, {s['cliffs']} cliffs; noise floor {floor}")


def _print_curve(curve: Any) -> None:
    say()
    say(curve.identity)
    say(f"  frontier: {_dims(curve.frontier)}")
    say(f"  safe: {_dims(curve.safe)}")
    if curve.period is not None:
        classes = " > ".join(
            f"{_dims(c.remainders)} ({c.ratio:.2f}×)" for c in curve.period.classes
        )
        say(f"  period {curve.period.modulus}: d mod {curve.period.modulus} in {classes}")
    for cliff in curve.cliffs:
        cause = f"  {cliff.cause}" if cliff.cause else ""
        say(f"  cliff {cliff.before} → {cliff.after}: {percent(cliff.jump, signed=True)}{cause}")


def _dims(dims: list[int]) -> str:
    """Dims in ascending order, even runs shortened: 96, 104 … 160 (by 8)."""
    parts: list[str] = []
    i = 0
    while i < len(dims):
        j = i + 1
        while j + 1 < len(dims) and dims[j + 1] - dims[j] == dims[i + 1] - dims[i]:
            j += 1
        if j - i >= 3:
            step = dims[i + 1] - dims[i]
            by = "" if step == 1 else f" (by {step})"
            parts.append(f"{dims[i]} … {dims[j]}{by}")
            i = j + 1
        else:
            parts.append(str(dims[i]))
            i += 1
    return ", ".join(parts) or "none"
