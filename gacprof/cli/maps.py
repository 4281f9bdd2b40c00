"""Verbs that read maps: ``map build``, ``show``, ``list``, ``diff``, ``check``."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from gacprof.cli import map_choose, map_make
from gacprof.cli.elsewhere import map_elsewhere
from gacprof.cli.options import Output, Rows, from_requests
from gacprof.cli.printing import (
    MOST_ROWS,
    complain,
    emit,
    plot_width,
    print_json,
    print_table,
    say,
    say_notes,
)
from gacprof.cliffmap.request import (
    BuildRequest,
    CheckRequest,
    DiffRequest,
    ListRequest,
    ShowRequest,
)
from gacprof.core.formatting import at_most, counted, dims, percent

if TYPE_CHECKING:
    from gacprof.cliffmap import CliffMap
    from gacprof.cliffmap.compare import CliffChange, Compatibility, CurveDiff, MapDiff
    from gacprof.cliffmap.schema import Curve
    from gacprof.cliffmap.storage import MapFacts

MORE = "30m"
"""Time to go on with a sweep for, where more blocks may decide."""

MOST_CURVES = 16
"""Curves listed before the rest is summed up; two lines each in a narrow terminal."""

MOST_DRAWN, MOST_CLIFFS = 2, 6
"""Curves drawn, and the largest cliffs printed of each, before the rest is summed up."""

MOST_LETTERS = 300
"""Of a list of dims."""

MOST_NAMED = 4
"""Curves that a sentence names."""

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
        print_json({"map": str(target)} | map_facts(built).as_dict(), "map-facts")
    else:
        _print_summary(built, faults=False)
        say(f"map: {target}")
    faults = [f"too noisy to judge by: {built.too_noisy}"] if built.too_noisy else []
    if built.file.unmeasured:
        faults.append(f"incomplete: {_unmeasured(built.file.unmeasured)}")
    if faults:
        device = " --device cpu" if built.environment.kind == "cpu" else ""
        more = f"gacprof sweep --resume --out {shlex.quote(str(folder))}{device} --budget {MORE}"
        anew = "; where all blocks are measured, sweep anew in a quieter moment, to another --out"
        complain(f"{'; '.join(faults)}. Go on with '{more}'{anew if built.too_noisy else ''}")
        raise typer.Exit(1)


def _unmeasured(curves: Sequence[str]) -> str:
    """``3 curves of the suite were not measured, the first is linear N …``."""
    count = counted(len(curves), "curve")
    return f"{count} of the suite not measured, the first is {curves[0]}"


@app.command()
@from_requests
def show(asked: ShowRequest, output: Rows) -> None:
    """Print a map: provenance, safe sizes and cliffs by axis.

    Of a rule table its sizes by tier."""
    import gacprof
    from gacprof.cliffmap import CliffMap

    loaded: Any = gacprof.open_source(asked.cliff_map)
    every = output.every
    if not isinstance(loaded, CliffMap):
        if output.as_json:
            print_json(loaded.as_dict())
        else:
            map_make.print_rules(loaded, every)
        return
    curves, narrowed = asked.chosen(loaded), asked.narrowed
    if output.as_json:
        data = loaded.as_dict()
        wanted = {c.identity for c in curves}
        pairs = zip(loaded.curves, data["curves"], strict=True)
        print_json(data | {"curves": [d for c, d in pairs if c.identity in wanted]})
        return
    _print_summary(loaded, brief=narrowed)
    if not narrowed:
        _print_curves(loaded, every)
    curves = sorted(curves, key=_worst, reverse=True) if narrowed else []
    for curve in curves if every else curves[:MOST_DRAWN]:
        _print_curve(curve, every)
    if len(curves) > MOST_DRAWN and not every:
        say()
        say(f"… and {len(curves) - MOST_DRAWN} curves with smaller penalties (--all; or narrow it:")
        narrower = list(dict.fromkeys(map(_fixed, curves[MOST_DRAWN:])))
        say(f"  {', '.join(narrower[:MOST_NAMED])}{' …' if narrower[MOST_NAMED:] else ''})")


def _worst(curve: Curve) -> float:
    """The largest penalty of a dim."""
    from gacprof.cliffmap.detect import penalty

    return max(penalty(curve.points.latency_us))


def _fixed(curve: Curve) -> str:
    return "--fixed " + ",".join(f"{name}={size}" for name, size in curve.fixed.items())


@app.command("list")
@from_requests
def list_maps(asked: ListRequest, output: Output) -> None:
    """List the maps that ship with gacprof."""
    import gacprof

    emit(gacprof.list_maps(asked), output.as_json, _print_maps)


def _print_maps(found: Sequence[MapFacts]) -> None:
    rows = [
        (
            s.name, s.device, s.provenance, _age(s.age_days), s.curves, s.points,
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
    said, names = _settings_once([_split(c.curve) for c in found.curves])
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
                say(f"{name}: {words}: {_listed(listed)}")
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


def _age(days: int | None) -> str | None:
    return None if days is None else "today" if days < 1 else f"{days} d"


def _print_summary(loaded: CliffMap, brief: bool = False, faults: bool = True) -> None:
    """Where a map is from, what it holds; ``brief`` leaves out sources, notes and
    checks that it passed. Without ``faults`` what makes it unusable is printed elsewhere."""
    from gacprof.cliffmap.storage import map_facts

    s = map_facts(loaded)
    noise = loaded.file.noise
    floor = (
        f"unknown ({noise.reason})"
        if noise.floor is None
        else f"{percent(noise.floor)} ({counted(noise.pairs, 'A/A pair')}, "
        f"{counted(noise.processes, 'process', 'processes')})"
    )
    age = f", {_age(s.age_days)} old" if s.age_days else ""
    say(f"{s.name}: {s.device} ({s.arch}), {s.provenance} {s.created[:10]}{age}")
    stack = ", ".join(f"{name} {version}" for name, version in s.stack.items() if version)
    about = {"source": s.source, "citation": s.citation, "stack": stack}
    for words, text in about.items() if not brief else ():
        if text:
            say(f"{words}: {text}")
    cliffs = f"{counted(s.cliffs, 'cliff')}; noise floor {floor}"
    say(f"{counted(s.curves, 'curve')}, {counted(s.points, 'point')}, {cliffs}")
    tolerance = " or ".join(f"{100 * t:g} %" for t in s.tolerances) or "unknown"
    say(
        f"dims, by a tolerance of {tolerance}: {s.safe} safe, {s.misaligned} misaligned, "
        f"{s.undecided} undecided"
    )
    if faults and loaded.file.unmeasured:
        say(f"incomplete: {_unmeasured(loaded.file.unmeasured)}")
    if faults and s.too_noisy:
        say(f"too noisy to judge by: {s.too_noisy}")
    if not brief:
        say_notes(loaded.file.provenance.notes)
    for check in loaded.file.checks:
        if brief and check.passed:
            continue
        say(f"{'check' if check.passed else 'check failed'}: {check.name}: {check.message}")


def _print_curves(loaded: CliffMap, every: bool) -> None:
    """Every curve in one line, the largest penalty first."""
    curves = sorted(loaded.curves, key=_worst, reverse=True)
    said, names = _settings_once([(curve.shape, curve.settings) for curve in curves])
    shown = curves if every else curves[:MOST_CURVES]
    rows = [
        (
            name, f"{curve.coverage.first}–{curve.coverage.last}", len(curve.cliffs),
            percent(_worst(curve)), len(curve.safe), len(curve.misaligned), len(curve.undecided),
        )
        for name, curve in zip(names, shown, strict=False)
    ]  # fmt: skip
    columns = ("curve", "dims", "cliffs", "worst", "safe", "misal.", "undec.")
    print_table("", columns, rows)
    if len(curves) > len(shown):
        say(f"… and {len(curves) - len(shown)} curves with smaller penalties (--all)")
    for line in said:
        say(line)
    say("worst: the largest penalty of a dim; a curve's frontier and cliffs: --op and --axis")


def _settings_once(curves: Sequence[tuple[str, str]]) -> tuple[list[str], list[str]]:
    """(lines, names) of (shape, settings): dtype and flags that all of an operator's curves share
    are said in a line, not in each name."""
    settings: dict[str, set[str]] = {}
    for shape, text in curves:
        settings.setdefault(shape.partition(" ")[0], set()).add(text)
    shared = {operator: next(iter(s)) for operator, s in settings.items() if len(s) == 1}
    names = [
        shape if shape.partition(" ")[0] in shared else f"{shape} {text}" for shape, text in curves
    ]
    return [f"{operator}: {text}" for operator, text in shared.items()], names


def _print_curve(curve: Curve, every: bool) -> None:
    from gacprof.report.figures import staircase_text

    most = None if every else MOST_LETTERS
    say()
    say(curve.identity)
    say(staircase_text(curve, plot_width()))
    say(
        f"  safe up to a penalty of {percent(curve.tolerance)}; "
        f"cliffs below {percent(curve.floor)} would not show"
    )
    say(f"  frontier: {_listed(curve.frontier, most)}")
    say(f"  safe: {_listed(curve.safe, most)}")
    if curve.misaligned:
        say(f"  misaligned: {_listed(curve.misaligned, most)}")
    if curve.undecided:
        say(f"  undecided: {_listed(curve.undecided, most)} ({_bounds(curve)})")
    if curve.period is not None:
        classes = " > ".join(f"{dims(c.remainders)} ({c.ratio:.2f}×)" for c in curve.period.classes)
        say(f"  period {curve.period.modulus}: d mod {curve.period.modulus} in {classes}")
    for d, why in curve.coverage.failed.items():
        say(f"  not measured: {d}: {why}")
    largest = sorted(curve.cliffs, key=lambda cliff: -abs(cliff.jump))
    matter = largest if every else largest[:MOST_CLIFFS]
    for cliff in sorted(matter, key=lambda cliff: cliff.before):
        cause = f"  {cliff.cause}" if cliff.cause else ""
        say(f"  cliff {cliff.before} → {cliff.after}: {percent(cliff.jump, signed=True)}{cause}")
    if len(matter) < len(largest):
        most_left = percent(abs(largest[len(matter)].jump))
        say(f"  … and {len(largest) - len(matter)} cliffs of at most {most_left} (--all)")


def _listed(listed: Sequence[int], most: int | None = MOST_LETTERS) -> str:
    """Dims; of more than ``most`` letters the first, and how many there are."""
    text = dims(listed)
    if most is None or len(text) <= most:
        return text
    return f"{text[: text.rindex(', ', 0, most)]}, … {len(listed)} in all (--all)"


def _bounds(curve: Curve) -> str:
    """What the penalties of the undecided dims may be."""
    bounds = dict(zip(curve.points.d, curve.points.penalty_high, strict=True))
    bounded = [b for d in curve.undecided if (b := bounds[d]) is not None]
    open_ones = len(curve.undecided) - len(bounded)
    parts = [f"penalties of at most {at_most(max(bounded))}"] if bounded else []
    if open_ones:
        parts.append(f"{open_ones} with nothing comparable that is larger")
    return ", ".join(parts)


for verb in (
    map_choose.candidates, map_choose.intersect, map_make.table, map_make.export,
    map_make.figure, map_make.rules, map_make.agree,
):  # fmt: skip
    app.command()(verb)
app.command("elsewhere")(map_elsewhere)
