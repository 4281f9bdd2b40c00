"""The verbs ``compress`` and ``export``."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from gacprof.cli.options import Output, Rows, from_requests
from gacprof.cli.printing import (
    SILENCE_S,
    complain,
    emit,
    err,
    print_table,
    progress,
    say,
    say_notes,
)
from gacprof.core.formatting import counted, duration, percent
from gacprof.core.request import RUN, Request, option
from gacprof.extras.compress.request import CompressRequest
from gacprof.extras.serve.request import ExportRequest

if TYPE_CHECKING:
    from gacprof.extras.compress.outcome import CompressResult
    from gacprof.extras.serve import Check, ExportResult


SHOWN = 12
"""Dims listed; ``gacprof.json`` has them all."""


class Fleet(Request):
    """Where layers are decomposed."""

    fleet: str | None = option(
        default=None, metavar="ADDRESS", group=RUN,
        help="Spread the work over a Ray cluster: auto, local or ray://HOST:10001. "
        "The result is the same.",
    )  # fmt: skip


@from_requests
def compress(asked: CompressRequest, where: Fleet, output: Rows) -> None:
    """Compress a dense model to sizes that a GPU serves well.

    By a published method; a map (--map) or a GPU's rules (--gpu) say which sizes are good.

    Without --map, --gpu or --round the sizes are the method's own. After Ctrl-C the same command
    goes on.
    """
    import gacprof
    from gacprof.extras.fleet.on_ray import tasks_on

    with progress(asked.method), tasks_on(where.fleet, asked.device) as tasks:
        result = gacprof.compress(replace(asked, tell=steps(), tasks=tasks))
    emit(result, output.as_json, print_compressed, output.every)


LAYER = re.compile(r"(\D*)\d+ of (\d+)")
"""A step that is one of several: of which pass over the layers, and how many it has."""


def steps(clock: Callable[[], float] = time.monotonic) -> Callable[[str], None]:
    """Says what is being done: each step on a terminal's stderr, else one every :data:`SILENCE_S`
    with the time that is left of its pass."""
    said = began = clock()
    current, done = "", 0

    def step(line: str) -> None:
        nonlocal said, began, current, done
        now, of = clock(), LAYER.match(line)
        if of is not None and of[1] == current:
            done += 1
        else:
            began, current, done = now, of[1] if of is not None else "", 0
        if err.is_terminal:
            err.print(line, highlight=False)
        elif now - said >= SILENCE_S:
            said, left = now, ""
            if of is not None and done:
                left = f", about {duration((now - began) / done * (int(of[2]) - done))} left"
            complain(f"{line}{left}")

    return step


def print_compressed(result: CompressResult, every: bool = False) -> None:
    _print_moved(result, every)
    became = "; ".join(f"{label} {change}" for label, change in result.became.items())
    if result.cache is None:
        gone = f"{percent(result.removed)} are gone"
        if result.removed < 0:
            gone = f"none is gone, there are {percent(-result.removed)} more"
        became += f"; of the {result.compressed_before:,} in the layers that it compresses {gone}"
    say(f"{result.method}: {became} ({percent(result.ratio)} were asked for)")
    if result.dropped:
        names = ", ".join(name.rpartition(".")[2] for name in result.dropped)
        say(f"{len(result.dropped)} of {counted(len(result.sizes), 'layer')} go: {names}")
    else:
        _print_chosen(result)
    for label, lost in result.lost.items():
        say(f"{label}: {lost}")
    say_notes(result.notes)
    say(f"checkpoint: {result.out}")


def _print_moved(result: CompressResult, every: bool) -> None:
    """The sizes that are not those requested."""
    changed = [
        (n, result.requested[n], s) for n, s in result.sizes.items() if s != result.requested[n]
    ]
    if not changed:
        if not result.ratio:
            say("no size changed")
        return
    rows = [
        (name.removeprefix("model.layers."), *("dense" if s is None else s for s in moved))
        for name, *moved in changed[: None if every else SHOWN]
    ]
    print_table("", ("dim", "own" if result.ratio else "given", "now"), rows)
    more = f", of which {SHOWN} are shown (--all: every one)"
    more = more if len(changed) > SHOWN and not every else ""
    say(f"{len(changed)} of {len(result.sizes)} sizes moved from {result.own}{more}")


def _print_chosen(result: CompressResult) -> None:
    """How sizes were chosen, and what is predicted of them."""
    from gacprof.extras.compress.outcome import times_of

    if result.method != "llm-pruner":  # whose sizes are of heads and neurons
        dense = sum(size is None for size in result.sizes.values())
        say(f"{dense} of {counted(len(result.sizes), 'weight')} stay dense")
    if result.plan is not None:
        count = len(result.plan.choices)
        say(
            f"aligned by the map {result.plan.map}: {result.aligned} of {count} dims are safe, "
            f"{result.undecided} undecided, none misaligned"
        )
        for time in result.predicted:
            say(f"predicted for {counted(time.tokens, 'token')}: {times_of(time, result.own)}")
        if not result.predicted:
            say(f"{result.plan.basis}: what that gains is not known")


@from_requests
def export(asked: ExportRequest, output: Output) -> None:
    """Write the checkpoint for an engine, and check it. Exit code 1 if the check fails."""
    import gacprof

    with progress("export") as advance:
        done = gacprof.export(replace(asked, progress=advance))
    emit(done, output.as_json, print_exported)
    if not done.check.passed:
        raise typer.Exit(1)


def print_exported(done: ExportResult) -> None:
    say(
        f"{done.to}: {done.parameters:,} parameters, {done.bytes_written:,} bytes in "
        f"{len(done.files)} files"
    )
    for line in check_lines(done.check):
        say(line)
    say_notes(done.notes)
    say(f"written: {done.out}")
    say(f"serve: {done.serve}")


def check_lines(check: Check) -> list[str]:
    """How the export was checked, a line for each way."""
    lines = []
    if check.tensors:
        lines.append(f"checked: {check.tensors} tensors read back, every one as it was to be")
    if check.engine:
        verdict = "passed" if check.passed else "FAILED"
        verdict = verdict if check.judged else "another element type, not judged"
        checked = (
            f"checked by {check.engine}: {check.same} of {check.tokens} greedy tokens are ours"
        )
        tie = "; they part where our two best logits tie" if check.near_tie else ""
        lines.append(f"{checked}{tie}, largest difference {check.error:.2g}: {verdict}")
    return lines
