"""Verbs that make pages: ``report`` and ``demo``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from gacprof.cli.printing import print_json, progress, say
from gacprof.core.errors import ReportError


def register(app: typer.Typer) -> None:
    app.command()(report)
    app.command()(demo)


def report(
    out: Annotated[Path, typer.Option(help="The page's folder.")],
    cliff_map: Annotated[
        str | None, typer.Option("--map", help="A shipped map's name, or a file.")
    ] = None,
    diagnosis: Annotated[Path | None, typer.Option(help="What diagnose --json printed.")] = None,
    plan: Annotated[Path | None, typer.Option(help="A plan's file.")] = None,
    realigned: Annotated[Path | None, typer.Option(help="What realign --json printed.")] = None,
    verified: Annotated[Path | None, typer.Option(help="What verify --json printed.")] = None,
    benched: Annotated[Path | None, typer.Option(help="What bench --json printed.")] = None,
    title: Annotated[str | None, typer.Option(help="The page's heading.")] = None,
) -> None:
    """Write one HTML page, with figures as SVG and PNG, from what the other verbs left."""
    from gacprof.cliffmap import CliffMap
    from gacprof.planning.schema import Plan
    from gacprof.report.contents import Contents
    from gacprof.report.page import write_page

    if not any((cliff_map, diagnosis, plan, realigned, verified, benched)):
        raise ReportError("nothing to report: give --map, --plan, --diagnosis or another file")
    loaded = CliffMap.load(cliff_map) if cliff_map else None
    subject = loaded.environment.name if loaded else "a checkpoint"
    contents = Contents(
        title=title or f"gacprof report: {subject}",
        cliff_map=loaded,
        diagnosis=_read(diagnosis, "totals"),
        plan=Plan.load(plan).as_dict() if plan else None,
        realigned=_read(realigned, "resized"),
        verification=_read(verified, "argmax_agreement"),
        bench=_read(benched, "timings"),
    )
    say(str(write_page(contents, out)))


def demo(
    out: Annotated[Path, typer.Option(help="The demo's folder; an earlier demo is replaced.")],
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda or cuda:N. Default: the first GPU, else the CPU.")
    ] = None,
    as_json: bool = typer.Option(False, "--json", help="Print JSON and nothing else on stdout."),
) -> None:
    """Run the whole chain once on this machine, and print the report's path last."""
    from gacprof.demo import run_demo

    with progress("measuring") as advance:
        done = run_demo(
            out, device=device, tell=(lambda _: None) if as_json else say, advance=advance
        )
    if as_json:
        print_json({"folder": str(done.folder), "page": str(done.page), "verified": done.verified})
    else:
        say(f"report: {done.page}")
    if not done.verified:
        raise typer.Exit(1)


def _read(path: Path | None, key: str) -> dict[str, Any] | None:
    """A verb's JSON from a file. ``key`` is what tells it from another verb's."""
    if path is None:
        return None
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ReportError(f"cannot read {path}: {error}") from None
    if not isinstance(data, dict) or key not in data:
        raise ReportError(f"{path} has no '{key}': it is not what this option takes")
    return data
