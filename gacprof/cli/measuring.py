"""Verbs that measure: ``doctor``, ``sweep``, ``demo``; on many devices ``fleet sweep`` (on Ray)."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from gacprof.cli.options import OneDevice, grouped
from gacprof.cli.printing import (
    Json,
    emit,
    err,
    interruptible,
    print_json,
    print_table,
    progress,
    say,
    say_notes,
)
from gacprof.core.errors import SuiteError
from gacprof.core.formatting import counted, duration
from gacprof.sweeping.request import FleetRequest, SweepRequest

if TYPE_CHECKING:
    from rich.table import Table

    from gacprof.devices.doctor import Component
    from gacprof.devices.forecast import Forecast
    from gacprof.extras.fleet.driver import FleetRun, Watch
    from gacprof.extras.fleet.members import Member
    from gacprof.sweeping import RunSummary


app = typer.Typer(no_args_is_help=True, help="Many devices, on Ray.")

SHOWN = 16
"""Devices that the view of a sweep lists; of the others the kinds are summed up."""


def doctor(as_json: bool = Json) -> None:
    """Say what can be measured on this machine, what not, and why."""
    from gacprof.devices.doctor import examine

    emit(examine(), as_json, _print_checks)


def _print_checks(checks: Sequence[Component]) -> None:
    marks = {True: "yes", False: "no", None: "–"}
    rows = [(c.name, marks[c.available], c.version, c.note) for c in checks]
    print_table("", ("component", "here", "version", "what follows"), rows)


@grouped
def sweep(
    asked: SweepRequest,
    *,
    dry_run: Annotated[bool, Option("--dry-run", help="Say what would be measured.")] = False,
    gpu: Annotated[
        str | None,
        Option(help="With --dry-run: what it takes of this GPU (h100 …), which need not be here."),
    ] = None,
    exhaustive: Annotated[
        bool, Option("--exhaustive", help="Measure every point, refine nothing.")
    ] = False,
    as_json: bool = Json,
) -> None:  # fmt: skip
    """Measure a suite's curves on a device, block by block; samples go to a folder as they come."""
    from gacprof import api

    chosen = api.make_suite(asked)
    if exhaustive:
        chosen = chosen.exhaustive()
    if gpu is not None:
        if not dry_run:
            raise SuiteError("--gpu goes with --dry-run: a sweep measures the --device at hand")
        emit(api.forecast_sweep(chosen, gpu), as_json, _print_forecast)
        return
    if dry_run:
        planned = api.estimate_sweep(chosen, asked.device, asked.budget_s)
        print_json(planned, "sweep-estimate") if as_json else _print_estimate(planned)
        return
    everywhere = asked.device == "all"
    with progress(f"sweep {chosen.name}") as advance:
        measure: Any = api.sweep_all_gpus if everywhere else api.sweep_suite
        done = measure(chosen, replace(asked, progress=advance))
    emit(done, as_json, print_fleet if everywhere else _print_swept)


def _print_estimate(planned: dict[str, Any]) -> None:
    most = "at most " if planned["refined_curves"] else ""
    say(
        f"suite {planned['suite']} on {planned['device']}: {most}"
        f"{counted(planned['points'], 'point')} on {counted(planned['curves'], 'curve')}"
    )
    calls = planned["estimated_from_calls"]
    basis = f"from {calls} calls" if calls else "a guess, nothing measured"
    longest = duration(planned["longest_s"])
    say(f"about {duration(planned['estimated_s'])} ({basis}), at most {longest}")
    if planned["device"] == "cpu" and os.getloadavg()[0] > 0.5:
        say("other work runs here: calls that it disturbs take longer")
    if planned["budget_s"]:
        say(f"the budget of {planned['budget_s']:g} s ends it; --resume goes on with what is "
            "undecided")  # fmt: skip


def _print_forecast(found: Forecast) -> None:
    memory = f" of {found.memory_gib}" if found.memory_gib else ""
    parts = ", ".join(f"{part} {duration(seconds)}" for part, seconds in found.seconds.items())
    say(
        f"at most {counted(found.points, 'point')} on an {found.gpu}, "
        f"{counted(found.slots, 'slot')} with A/A replicates; {counted(found.blocks, 'block')} at "
        "least"
    )
    say(
        f"each process captures {counted(found.graphs, 'graph')} of {found.nodes} nodes, cuDNN "
        f"plans {counted(found.plans, 'shape')}, memory {found.peak_gib}{memory} GiB"
    )
    say(f"about {duration(sum(found.seconds.values()))}, from the data sheet: {parts}")


def _print_swept(run: RunSummary) -> None:
    say(
        f"{counted(run.points, 'point')} on {counted(run.curves, 'curve')}, "
        f"{counted(run.blocks, 'block')}, {counted(run.calls, 'call')}, {run.failed} failed, "
        f"{run.seconds:.1f} s"
    )
    if run.undecided:
        more = "; --resume goes on with them" if run.unfinished else ""
        say(
            f"{counted(run.undecided, 'curve')} had undecided dims at the last look{more}; "
            "the map judges by all blocks"
        )
    say(f"samples: {run.folder}    next: gacprof map build {run.folder}")


def print_fleet(done: FleetRun) -> None:
    for kind, run in done.runs.items():
        say(f"{kind}: {', '.join(done.devices[kind])}")
        _print_swept(run)
    say_notes(done.notes)


def demo(
    out: Annotated[Path, Option(help="The demo's folder; an earlier demo is replaced.")],
    model: Annotated[
        Path | None,
        Option(help="A small dense model to compress. Default: factors of random weights."),
    ] = None,
    device: OneDevice = None,
    as_json: bool = Json,
) -> None:
    """Run the whole chain once on this machine, and print the report's path last."""
    from gacprof.demo import run_demo

    tell = (lambda line: None) if as_json else say
    with progress("measuring") as advance:
        done = run_demo(out, device=device, model=model, tell=tell, advance=advance)
    emit(done, as_json, lambda done: say(f"report: {done.page}"))
    if not done.verified:
        raise typer.Exit(1)


@app.command("sweep")
@grouped
def fleet_sweep(asked: FleetRequest, *, as_json: bool = Json) -> None:
    """Measure a suite on every kind of device of a Ray cluster; equal devices split its curves."""
    from gacprof import api

    with _view(f"fleet sweep {asked.suite}") as watch:
        done = api.sweep_fleet(replace(asked, watch=watch))
    emit(done, as_json, print_fleet)


@contextmanager
def _view(title: str) -> Iterator[Watch]:
    """All workers on stderr, while it is a terminal."""
    from rich.live import Live

    live = Live(console=err, transient=True, refresh_per_second=2)

    def watch(members: Sequence[Member]) -> None:
        live.update(_table(title, members))

    with interruptible():
        if not err.is_terminal:
            yield lambda members: None
            return
        with live:
            yield watch


def _table(title: str, members: Sequence[Member]) -> Table:
    from rich.table import Table

    table = Table("device", "is", "curves", "done", title=title, title_justify="left")
    for m in members[:SHOWN]:
        share = "" if not m.total else f"{m.done / m.total:.0%}"
        curves = str(len(m.share.plans)) if m.share else ""
        table.add_row(m.device or m.place.name, m.state, curves, share)
    rest = Counter(m.state for m in members[SHOWN:])
    for state, count in rest.items():
        table.add_row(f"{count} more", state, "", "")
    return table
