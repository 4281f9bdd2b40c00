"""The verbs ``map build``, ``list``, ``diff`` and ``check``, and the group of all of ``map``."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gacprof.cli import map_choose, map_make
from gacprof.cli.map_show import (
    MOST_NAMED,
    age_of,
    listed_dims,
    print_summary,
    settings_once,
    show,
    unmeasured,
)
from gacprof.cli.options import Output, from_requests
from gacprof.cli.printing import MOST_ROWS, complain, emit, print_json, print_table, say
from gacprof.cliffmap.request import BuildRequest, CheckRequest, DiffRequest, ListRequest
from gacprof.core.formatting import percent

if TYPE_CHECKING:
    from gacprof.cliffmap.compare import CliffChange, Compatibility, CurveDiff, MapDiff
    from gacprof.cliffmap.storage import MapFacts

MORE = "30m"
"""Time to go on with a sweep for, where more blocks may decide."""

app = typer.Typer(help="Build, read and compare cliff maps.", no_args_is_help=True)


@app.command()
@from_requests
def build(asked: BuildRequest, output: Output) -> None:
    """Build the cliff map of a finished or interrupted sweep.

    Exit code 1 where it is written but incomplete (curves of its suite were not measured) or too
    noisy to judge by: an A/A floor above 10 %, or more than half of its dims undecided with
    penalties of up to more than 5 tolerances.
    """
    from gacprof.api.maps import build_map, map_target
    from gacprof.cliffmap.storage import map_facts

    built, target = build_map(asked), map_target(asked)
    samples = Path(asked.samples)
    folder = samples if samples.is_dir() else samples.parent
    if output.as_json:
        print_json({"map": str(target)} | map_facts(built.file).as_dict(), "map-facts")
    else:
        print_summary(built, faults=False)
        say(f"map: {target}")
    faults = [f"too noisy to judge by: {built.too_noisy}"] if built.too_noisy else []
    if built.file.unmeasured:
        faults.append(f"incomplete: {unmeasured(built.file.unmeasured)}")
    if faults:
        device = " --device cpu" if built.environment.kind == "cpu" else ""
        more = f"gacprof sweep --resume --out {shlex.quote(str(folder))}{device} --budget {MORE}"
        anew = "; where all blocks are measured, sweep anew in a quieter moment, to another --out"
        complain(f"{'; '.join(faults)}. Go on with '{more}'{anew if built.too_noisy else ''}")
        raise typer.Exit(1)


app.command()(show)


@app.command("list")
@from_requests
def list_maps(asked: ListRequest, output: Output) -> None:
    """List the maps that ship with gacprof."""
    import gacprof

    emit(gacprof.list_maps(asked), output.as_json, _print_maps)


def _print_maps(found: Sequence[MapFacts]) -> None:
    rows = [
        (
            s.name, s.device, s.provenance, age_of(s.age_days), s.curves, s.points,
            percent(s.noise_floor),
        )
        for s in found
    ]  # fmt: skip
    print_table("", ("map", "device", "kind", "age", "curves", "points", "A/A floor"), rows)
    say("where a map comes from, and what it holds: gacprof map show MAP")


@app.command()
@from_requests
def diff(asked: DiffRequest, output: Output) -> None:
    """Print how the cliffs of two maps differ.

    Exit code 1 if any of them is significant: beyond both maps' intervals and noise floors; 2 if
    the maps have no curve in common.
    """
    import gacprof

    found = gacprof.diff_maps(asked)
    emit(found, output.as_json, _print_diff)
    if found.differs:
        raise typer.Exit(1)


def _print_diff(found: MapDiff) -> None:
    say(f"A: {found.a}")
    say(f"B: {found.b}")
    said, names = settings_once([_split(c.curve) for c in found.curves])
    changed = [(name, c) for name, c in zip(names, found.curves, strict=True) if c.cliffs]
    rows = [
        (name, c.common, None if c.ratio is None else f"{c.ratio:.3f}", _counts(c.cliffs))
        for name, c in changed[:MOST_ROWS]
    ]
    if rows:
        print_table("", ("curve", "dims in common", "B / A", "cliffs"), rows)
    if len(changed) > len(rows):
        say(f"… and {len(changed) - len(rows)} more curves (--json has all)")
    if alike := len(found.curves) - len(changed):
        say(f"{alike} of {len(found.curves)} curves in common have the same cliffs")
    _print_changes(changed)
    for name, curve in zip(names, found.curves, strict=True):
        for words, listed in (("no longer safe", curve.safe_lost), ("now safe", curve.safe_gained)):
            if listed:
                say(f"{name}: {words}: {listed_dims(listed)}")
    for letter, only in (("A", found.only_a), ("B", found.only_b)):
        if only:
            more = f"; … and {len(only) - MOST_NAMED} more" if len(only) > MOST_NAMED else ""
            say(f"only in {letter}: {'; '.join(_split(c)[0] for c in only[:MOST_NAMED])}{more}")
    for line in said:
        say(line)
    say("significant differences" if found.differs else "no significant difference")


def _print_changes(changed: Sequence[tuple[str, CurveDiff]]) -> None:
    """The cliffs that surely differ, those that differ most first."""
    known = [(n, c) for n, curve in changed for c in curve.cliffs if c.verdict != "unknown"]
    sure = [(name, change) for name, change in known if change.significant]
    sure.sort(key=lambda entry: -abs((entry[1].jump_b or 0) - (entry[1].jump_a or 0)))
    rows = [
        (
            name, c.verdict, _place(c), percent(c.jump_a, signed=True),
            percent(c.jump_b, signed=True),
        )
        for name, c in sure[:MOST_ROWS]
    ]  # fmt: skip
    if rows:
        columns = ("curve", "cliff", "at", "in A", "in B")
        print_table("cliffs that differ by more than both maps' noise", columns, rows)
    if left := len(known) - len(rows):
        say(f"… and {left} that are smaller or within the noise (--json has all)")


def _split(identity: str) -> tuple[str, str]:
    """A curve's (shape, settings)."""
    shape, _, settings = identity.partition(") ")
    return f"{shape})", settings


def _counts(changes: list[CliffChange]) -> str:
    verdicts = [change.verdict for change in changes]
    counted = (f"{verdicts.count(v)} {v}" for v in dict.fromkeys(verdicts))
    return ", ".join(counted) or "alike"


def _place(change: CliffChange) -> str:
    place = f"{change.before} → {change.after}"
    return place if change.to is None else f"{place}, now {change.to[0]} → {change.to[1]}"


@app.command()
@from_requests
def check(asked: CheckRequest, output: Output) -> None:
    """Say whether a map holds for this machine.

    Device and libraries are compared. Exit code 1 if not."""
    import gacprof

    found = gacprof.check_map(asked)
    emit(found, output.as_json, _print_compatibility)
    if found.stale:
        raise typer.Exit(1)


def _print_compatibility(found: Compatibility) -> None:
    say(f"{found.map} ({found.provenance}): {found.device}; here: {found.here.name}")
    for line in found.lines:
        say(f"  {line}")
    say(
        "stale: it does not tell about this machine; measure it: gacprof sweep quick"
        if found.stale
        else "it fits this machine"
    )


for verb in (
    map_choose.candidates, map_choose.intersect, map_make.table, map_make.export,
    map_make.figure, map_make.rules,
):  # fmt: skip
    app.command()(verb)
