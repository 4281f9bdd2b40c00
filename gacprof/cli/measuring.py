"""Verbs that measure the device at hand: ``doctor``, ``sweep``, ``demo``."""

from __future__ import annotations

import os
import re
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
    budget_seconds,
    flags,
    sizes,
    token_counts,
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


def sweep(
    suite: Annotated[
        str | None, Argument(help="A suite's name (quick, full, cpu, paper …) or a TOML file.")
    ] = None,
    device: Annotated[
        str | None,
        Option(help="cpu, cuda, cuda:N, or all (every GPU). Default: the first GPU, else the CPU."),
    ] = None,
    out: Annotated[Path | None, Option(help="Folder for the samples.")] = None,
    resume: Annotated[bool, Option("--resume", help="Go on with the sweep in --out.")] = False,
    checkpoint: Annotated[
        str | None, Option("--for", help="Sweep this checkpoint's own shapes instead.")
    ] = None,
    ranks: Annotated[
        str | None,
        Option(
            "--ranks",
            metavar="DENSE|OUTxIN,…",
            help="Sweep the factor pairs instead that this dense checkpoint's linear layers, or "
            "weights of these shapes, would be cut into.",
        ),
    ] = None,
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
    tokens: Annotated[
        str | None,
        Option(
            help="Token counts to serve, with --for and --ranks. Default: 1,1024.", metavar="M,M,…"
        ),
    ] = None,
    dtype: Annotated[str, Option(help="Compute dtype, with --for, --ranks, --op.")] = "auto",
    window: Annotated[
        float, Option(min=0.0, max=4.0, help="Candidates within ± this share (and 32), with --for.")
    ] = 0.25,
    preset: Annotated[
        str | None,
        Option(
            metavar="ENGINE[,…]",
            help="With --for: sizes that this engine takes too, as vllm,tp=4,marlin.",
        ),
    ] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Say what would be measured.")] = False,
    budget: Annotated[
        str | None, Option(help="End after this time; --resume takes the rest.", metavar="8m")
    ] = None,
    exhaustive: Annotated[
        bool, Option("--exhaustive", help="Measure every point, refine nothing.")
    ] = False,
    isolate: Annotated[
        bool, Option("--isolate/--no-isolate", help="Measure in worker processes, or in this one.")
    ] = True,
    timeout: Annotated[
        float, Option(min=0.1, help="Seconds for one block before a worker is replaced.")
    ] = 60.0,
    timer: Annotated[str, Option(help="A GPU's timer: auto, cuda-graph or cuda-events.")] = "auto",
    lock_clocks: Annotated[
        int | None, Option(min=1, help="Lock the SM clock meanwhile (needs root).", metavar="MHZ")
    ] = None,
    as_json: bool = Json,
) -> None:
    """Measure a suite's curves on a device, block by block; samples go to a folder as they come."""
    from gacprof import api

    ends = first_and_last(rank_range)
    own = None if operator is None else _one_curve(operator, axis, ends, fixed, dtype, flag)
    if own and suite:
        raise SuiteError(f"give one of a suite ('{suite}') and a curve of your own (--op)")
    chosen = api.make_suite(
        own or suite, model=checkpoint, ranks_of=shapes(ranks), ranks=None if own else ends,
        tokens=None if tokens is None else token_counts(tokens), dtype=dtype, window=window,
        preset=preset, begun=out if resume else None,
    )  # fmt: skip
    if exhaustive:
        chosen = chosen.exhaustive()
    seconds = budget_seconds(budget)
    if dry_run:
        planned = api.estimate_sweep(chosen, device, seconds)
        print_json(planned, "sweep-estimate") if as_json else _print_estimate(planned)
        return
    how: dict[str, Any] = {
        "out": out, "resume": resume, "budget_s": seconds, "isolate": isolate,
        "timeout_s": timeout, "timer": timer,
    }  # fmt: skip
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


def _one_curve(
    operator: str,
    axis: str | None,
    ends: tuple[int, int] | None,
    fixed: Sequence[str] | None,
    dtype: str,
    flag: Sequence[str] | None,
) -> dict[str, Any]:
    """A suite of one curve."""
    if axis is None or ends is None:
        raise SuiteError("--op goes with --axis and --range: --op linear --axis K --range 64:128")
    curve: dict[str, Any] = {
        "operator": operator, "axis": axis, "values": [{"from": ends[0], "to": ends[1]}],
        "dims": sizes(fixed), "flags": dict(flags(flag) or {}),
    }  # fmt: skip
    if dtype != "auto":
        curve["dtype"] = dtype
    return {"name": f"{operator}-{axis}", "sweep": [curve]}


def shapes(dense: str | None) -> str | list[tuple[int, int]] | None:
    """``4096x4096,11008x4096`` as pairs; anything else is a checkpoint's name."""
    if dense is None:
        return None
    shapes = re.findall(r"([1-9]\d{0,8})x([1-9]\d{0,8})(?:,|$)", dense)
    if ",".join(f"{o}x{i}" for o, i in shapes) != dense:
        return dense
    return [(int(o), int(i)) for o, i in shapes]


def first_and_last(ranks: str | None) -> tuple[int, int] | None:
    if ranks is None:
        return None
    match = re.fullmatch(r"(\d{1,9}):(\d{1,9})", ranks.strip())
    if not match:
        raise SuiteError(f"--range is '{ranks}': give the first and the last rank, as 64:256")
    return int(match[1]), int(match[2])


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
