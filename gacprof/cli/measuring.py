"""Verbs that measure the device at hand: ``doctor``, ``sweep``, ``demo``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from gacprof.cli.options import (
    Axis,
    Fixed,
    Flags,
    OneDevice,
    Running,
    Shapes,
    first_and_last,
    flags,
    grouped,
    sizes,
)
from gacprof.cli.printing import Json, emit, print_json, print_table, progress, say, say_notes
from gacprof.core.errors import MeasurementError, SuiteError
from gacprof.core.formatting import duration

if TYPE_CHECKING:
    from gacprof.devices.doctor import Component
    from gacprof.fleet.driver import FleetRun
    from gacprof.sweeping import RunSummary


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
    suite: Annotated[
        str | None, Argument(help="A suite's name (quick, full, cpu, paper …) or a TOML file.")
    ] = None,
    *,
    device: Annotated[
        str | None,
        Option(help="cpu, cuda, cuda:N, or all (every GPU). Default: the first GPU, else the CPU."),
    ] = None,
    out: Annotated[Path | None, Option(help="Folder for the samples.")] = None,
    shapes: Shapes,
    rank_range: Annotated[
        str | None,
        Option("--range", help="Ranks with --ranks, dims with --op.", metavar="FIRST:LAST"),
    ] = None,
    operator: Annotated[
        str | None, Option("--op", help="Sweep one curve instead: this operator's, over --axis.")
    ] = None,
    axis: Axis = None,
    fixed: Fixed = None,
    flag: Flags = None,
    dtype: Annotated[str, Option(help="Compute dtype, with --for, --ranks, --op.")] = "auto",
    dry_run: Annotated[bool, Option("--dry-run", help="Say what would be measured.")] = False,
    exhaustive: Annotated[
        bool, Option("--exhaustive", help="Measure every point, refine nothing.")
    ] = False,
    isolate: Annotated[
        bool, Option("--isolate/--no-isolate", help="Measure in worker processes, or in this one.")
    ] = True,
    running: Running,
    lock_clocks: Annotated[
        int | None, Option(min=1, help="Lock the SM clock meanwhile (needs root).", metavar="MHZ")
    ] = None,
    as_json: bool = Json,
) -> None:
    """Measure a suite's curves on a device, block by block; samples go to a folder as they come."""
    from gacprof import api

    ends = first_and_last(rank_range)
    own = None
    if operator is not None:
        if suite:
            raise SuiteError(f"give one of a suite ('{suite}') and a curve of your own (--op)")
        if axis is None or ends is None:
            raise SuiteError(
                "--op goes with --axis and --range: --op linear --axis K --range 64:128"
            )
        curve = {
            "operator": operator, "axis": axis, "values": [{"from": ends[0], "to": ends[1]}],
            "dims": sizes(fixed), "flags": dict(flags(flag) or {}),
        }  # fmt: skip
        typed = {} if dtype == "auto" else {"dtype": dtype}
        own = {"name": f"{operator}-{axis}", "sweep": [curve | typed]}
    chosen = api.make_suite(
        own or suite, ranks=None if own else ends, dtype=dtype,
        begun=out if running.resume else None, **shapes.asked(),
    )  # fmt: skip
    if exhaustive:
        chosen = chosen.exhaustive()
    if dry_run:
        planned = api.estimate_sweep(chosen, device, running.budget_s)
        print_json(planned, "sweep-estimate") if as_json else _print_estimate(planned)
        return
    how = {"out": out, "isolate": isolate} | vars(running)
    with progress(f"sweep {chosen.name}") as advance:
        if device != "all":
            done: Any = api.sweep(
                chosen, device=device, lock_clocks_mhz=lock_clocks, progress=advance, **how
            )
        elif lock_clocks is not None:
            raise MeasurementError("--lock-clocks goes with one device: name it with --device")
        else:
            done = api.sweep_all_gpus(chosen, progress=advance, **how)
    emit(done, as_json, print_fleet if device == "all" else _print_swept)


def _print_estimate(planned: dict[str, Any]) -> None:
    most = "at most " if planned["refined_curves"] else ""
    say(
        f"suite {planned['suite']} on {planned['device']}: {most}{planned['points']} points on "
        f"{planned['curves']} curves"
    )
    calls = planned["estimated_from_calls"]
    basis = f"from {calls} calls" if calls else "a guess, nothing measured"
    longest = duration(planned["longest_s"])
    say(f"about {duration(planned['estimated_s'])} ({basis}), at most {longest}")
    if planned["device"] == "cpu" and os.getloadavg()[0] > 0.5:
        say("other work runs here: calls that it disturbs are made again, so it may be longer")
    if planned["budget_s"]:
        say(f"the budget of {planned['budget_s']:g} s ends it; --resume goes on with what is "
            "undecided")  # fmt: skip


def _print_swept(run: RunSummary) -> None:
    say(
        f"{run.points} points on {run.curves} curves, {run.blocks} blocks, "
        f"{run.calls} calls, {run.failed} failed, {run.seconds:.1f} s"
    )
    if run.undecided:
        more = "; --resume goes on with them" if run.unfinished else ""
        say(f"{run.undecided} curves have undecided dims{more}")
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
        Option(help="A small trained model to compress first. Default: random weights."),
    ] = None,
    device: OneDevice = None,
    as_json: bool = Json,
) -> None:
    """Run the whole chain once on this machine, and print the report's path last."""
    from gacprof.demo import run_demo

    with progress("measuring") as advance:
        done = run_demo(
            out, device=device, model=model, tell=_silent if as_json else say, advance=advance
        )
    if as_json:
        made = {"folder": str(done.folder), "page": str(done.page), "verified": done.verified}
        print_json(made, "demo")
    else:
        say(f"report: {done.page}")
    if not done.verified:
        raise typer.Exit(1)


def _silent(line: str = "") -> None:
    """Where JSON alone is printed."""
