"""Verbs that measure: ``doctor``, ``sweep``, ``demo``; on many devices ``fleet sweep`` (on Ray)."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from gacprof.api.gpus import DoctorRequest
from gacprof.cli.options import Output, from_requests
from gacprof.cli.printing import (
    emit,
    err,
    interruptible,
    print_table,
    progress,
    say,
    say_notes,
)
from gacprof.core.errors import SuiteError
from gacprof.core.formatting import counted, duration
from gacprof.core.request import option
from gacprof.demonstrating.run import DemoRequest
from gacprof.extras.fleet.request import FleetRequest
from gacprof.sweeping.request import EstimateRequest, OnGpu, SweepRequest

if TYPE_CHECKING:
    from rich.table import Table

    from gacprof.api.sweeps import SweepEstimate
    from gacprof.devices.doctor import Component
    from gacprof.devices.forecast import Forecast
    from gacprof.extras.fleet.driver import FleetRun, Watch
    from gacprof.extras.fleet.members import Member
    from gacprof.sweeping import RunSummary


app = typer.Typer(no_args_is_help=True, help="Sweep many devices, on Ray.")

SHOWN = 16
"""Devices that the view of a sweep lists; of the others the kinds are summed up."""


@from_requests
def doctor(asked: DoctorRequest, output: Output) -> None:
    """Say what can be measured on this machine, what not, and why."""
    import gacprof

    emit(gacprof.doctor(asked), output.as_json, _print_checks)


def _print_checks(checks: Sequence[Component]) -> None:
    marks = {True: "yes", False: "no", None: "–"}
    rows = [(c.name, marks[c.available], c.version, c.note) for c in checks]
    print_table("", ("component", "here", "version", "what follows"), rows)


class DryRun(OnGpu):
    """Whether a sweep is only estimated."""

    dry_run: bool = option(default=False, help="Say what would be measured.")


@from_requests
def sweep(asked: SweepRequest, dry: DryRun, output: Output) -> None:
    """Measure the latency of sizes: a suite's, or a model's own.

    Samples go to a folder block by block; --resume goes on with what an interrupt left."""
    from gacprof.api import sweeps

    if dry.gpu is not None and not dry.dry_run:
        raise SuiteError("--gpu goes with --dry-run: a sweep measures the --device at hand")
    if dry.dry_run:
        planned = sweeps.estimate_sweep(EstimateRequest.joined(asked, dry))
        show = _print_estimate if dry.gpu is None else _print_forecast
        emit(planned, output.as_json, show)
        return
    chosen, everywhere = sweeps.make_suite(asked), asked.device == "all"
    with progress(f"sweep {chosen.name}") as advance:
        measure: Any = sweeps.sweep_all_gpus if everywhere else sweeps.sweep_suite
        done = measure(chosen, replace(asked, progress=advance))
    emit(done, output.as_json, print_fleet if everywhere else _print_swept)


def _print_estimate(planned: SweepEstimate) -> None:
    most = "at most " if planned.refined_curves else ""
    say(
        f"suite {planned.suite} on {planned.device}: {most}"
        f"{counted(planned.points, 'point')} on {counted(planned.curves, 'curve')}"
    )
    calls = planned.estimated_from_calls
    basis = f"from {calls} calls" if calls else "a guess, nothing measured"
    longest = duration(planned.longest_s)
    say(f"about {duration(planned.estimated_s)} ({basis}), at most {longest}")
    if planned.device == "cpu" and os.getloadavg()[0] > 0.5:
        say("other work runs here: calls that it disturbs take longer")
    if planned.budget_s:
        say(
            f"the budget of {planned.budget_s:g} s ends it; --resume goes on with what is undecided"
        )


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


@from_requests
def demo(asked: DemoRequest, output: Output) -> None:
    """Run the whole chain once on this machine."""
    import gacprof

    tell = None if output.as_json else say
    with progress("measuring") as advance:
        done = gacprof.demo(replace(asked, tell=tell, progress=advance))
    emit(done, output.as_json, lambda done: say(f"report: {done.page}"))
    if not done.verified:
        raise typer.Exit(1)


@app.command("sweep")
@from_requests
def fleet_sweep(asked: FleetRequest, output: Output) -> None:
    """Measure a suite on every kind of device of a Ray cluster; equal devices split its curves."""
    import gacprof

    with _view(f"fleet sweep {asked.suite}") as watch:
        done = gacprof.sweep_fleet(replace(asked, watch=watch))
    emit(done, output.as_json, print_fleet)


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
