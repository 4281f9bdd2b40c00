"""The verb ``map show``: a map's provenance, and what it says of sizes, by curve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gacprof.cli.map_make import print_rules
from gacprof.cli.options import Rows, from_requests
from gacprof.cli.printing import plot_width, print_json, print_table, say, say_notes
from gacprof.cliffmap.request import ShowRequest
from gacprof.core.formatting import at_most, counted, dims, percent

if TYPE_CHECKING:
    from gacprof.cliffmap import CliffMap
    from gacprof.cliffmap.schema import Curve

MOST_CURVES = 16
"""Curves listed before the rest is summed up; two lines each in a narrow terminal."""

MOST_DRAWN, MOST_CLIFFS = 2, 6
"""Curves drawn, and the largest cliffs printed of each, before the rest is summed up."""

MOST_LETTERS = 300
"""Of a list of dims."""

MOST_NAMED = 4
"""Curves that a sentence names."""


@from_requests
def show(asked: ShowRequest, output: Rows) -> None:
    """Print a map: provenance, safe sizes and cliffs by axis.

    Of a rule table its sizes by tier."""
    import gacprof

    loaded: Any = gacprof.open_source(asked.cliff_map)
    every = output.every
    if loaded.tiers:
        if output.as_json:
            print_json(loaded.as_dict())
        else:
            print_rules(loaded, every)
        return
    curves, narrowed = asked.chosen(loaded), asked.narrowed
    if output.as_json:
        data = loaded.as_dict()
        wanted = {c.identity for c in curves}
        pairs = zip(loaded.curves, data["curves"], strict=True)
        print_json(data | {"curves": [d for c, d in pairs if c.identity in wanted]})
        return
    print_summary(loaded, brief=narrowed)
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


def print_summary(loaded: CliffMap, brief: bool = False, faults: bool = True) -> None:
    """Where a map is from, what it holds; ``brief`` leaves out sources, notes and
    checks that it passed. Without ``faults`` what makes it unusable is printed elsewhere."""
    from gacprof.cliffmap.storage import map_facts

    s = map_facts(loaded.file)
    noise = loaded.file.noise
    floor = (
        f"unknown ({noise.reason})"
        if noise.floor is None
        else f"{percent(noise.floor)} ({counted(noise.pairs, 'A/A pair')}, "
        f"{counted(noise.processes, 'process', 'processes')})"
    )
    age = f", {age_of(s.age_days)} old" if s.age_days else ""
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
        say(f"incomplete: {unmeasured(loaded.file.unmeasured)}")
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
    said, names = settings_once([(curve.shape, curve.settings) for curve in curves])
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


def settings_once(curves: Sequence[tuple[str, str]]) -> tuple[list[str], list[str]]:
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
    from gacprof.reporting.figures import staircase_text

    most = None if every else MOST_LETTERS
    say()
    say(curve.identity)
    say(staircase_text(curve, plot_width()))
    say(
        f"  safe up to a penalty of {percent(curve.tolerance)}; "
        f"cliffs below {percent(curve.floor)} would not show"
    )
    say(f"  frontier: {listed_dims(curve.frontier, most)}")
    say(f"  safe: {listed_dims(curve.safe, most)}")
    if curve.misaligned:
        say(f"  misaligned: {listed_dims(curve.misaligned, most)}")
    if curve.undecided:
        say(f"  undecided: {listed_dims(curve.undecided, most)} ({_bounds(curve)})")
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


def listed_dims(listed: Sequence[int], most: int | None = MOST_LETTERS) -> str:
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


def unmeasured(curves: Sequence[str]) -> str:
    """``3 curves of the suite were not measured, the first is linear N …``."""
    count = counted(len(curves), "curve")
    return f"{count} of the suite not measured, the first is {curves[0]}"


def age_of(days: int | None) -> str | None:
    return None if days is None else "today" if days < 1 else f"{days} d"
