"""The verb ``survey``: a device measured and written up by one command."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from gacprof.cli.printing import Json, print_json, progress, say
from gacprof.core.errors import SuiteError

SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}


def register(app: typer.Typer) -> None:
    app.command()(survey)


def survey(
    out: Annotated[Path, typer.Option(help="The survey's folder.")],
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda or cuda:N. Default: the first GPU, else the CPU.")
    ] = None,
    budget: Annotated[
        str | None, typer.Option(help="About how long this call may take.", metavar="8m")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a survey, and deepen what is thin.")
    ] = False,
    suite: Annotated[
        str | None, typer.Option(help="A suite's name or TOML file. Default: full, on a CPU cpu.")
    ] = None,
    as_json: bool = Json,
) -> None:
    """Measure a device and write it up: map, tables, figures, disputes, whole models, a page."""
    seconds = None if budget is None else duration(budget)
    from gacprof.survey import run_survey

    with progress("survey") as advance:
        try:
            done = run_survey(
                out, device=device, suite=suite, budget_s=seconds, resume=resume,
                tell=(lambda _: None) if as_json else say, advance=advance,
            )  # fmt: skip
        except KeyboardInterrupt:
            say(f"interrupted; what was measured is in {out}, go on with --resume")
            raise
    failed = [name for name, record in done.stages.items() if record.status == "failed"]
    thin = {name: record.thin for name, record in done.stages.items() if record.thin}
    if as_json:
        stages = {name: record.status for name, record in done.stages.items()}
        print_json({"folder": str(out), "stages": stages, "thin": thin})
    else:
        for name, words in thin.items():
            say(f"to deepen with --resume: {name}: {words}")
        if (out / "index.html").is_file():
            say(f"page: {out / 'index.html'}")
    if failed:
        raise typer.Exit(1)


def duration(text: str) -> float:
    """``8m``, ``90``, ``1.5h`` → seconds. Raises :class:`SuiteError` for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    if match is None or float(match[1]) == 0:
        raise SuiteError(f"'{text}' is no time budget: write it as 90s, 8m or 1h")
    return float(match[1]) * SECONDS[match[2]]
