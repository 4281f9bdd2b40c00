"""Verbs that hold a map against another or against this machine: ``map diff``, ``map check``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gacprof.cli import map_options as options
from gacprof.cli.map_options import MapName
from gacprof.cli.printing import Json, percent, print_json, print_table, say
from gacprof.core.errors import MapError

if TYPE_CHECKING:
    from gacprof.cliffmap.compare import CliffChange, MapDiff


def register(app: typer.Typer) -> None:
    app.command()(diff)
    app.command()(check)


def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="The older map, or one device's.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The newer map, or another device's.")],
    as_json: bool = Json,
) -> None:
    """Print which cliffs are gone, new, moved or of another size from A to B.

    Exit code 1 if any of them is significant: beyond both maps' intervals and noise floors; 2 if
    the maps have no curve in common.
    """
    from gacprof.cliffmap.compare import diff as compare

    old, new = options.load(a, b)
    found = compare(old, new)
    if not found.curves:
        raise MapError(
            f"{found.a} and {found.b} have no curve in common (operator, axis, dtype, flags and "
            "the other dims must agree): nothing can be compared; gacprof map show lists theirs"
        )
    if as_json:
        print_json(found.as_dict())
    else:
        _print_diff(found)
    if found.differs:
        raise typer.Exit(1)


def _print_diff(found: MapDiff) -> None:
    a, b = (found.a, found.b) if found.a != found.b else ("A", "B")
    rows = [
        (c.curve, c.common, f"{c.ratio:.3f}", _counts(c.cliffs)) for c in found.curves if c.ratio
    ]
    if rows:
        print_table(f"{a} → {b}", ("curve", "dims in common", "B / A", "cliffs"), rows)
    changes = [
        (
            curve.curve, change.verdict, _place(change), _jump(change.jump_a),
            _jump(change.jump_b), "yes" if change.significant else "no",
        )
        for curve in found.curves for change in curve.cliffs if change.verdict != "unknown"
    ]  # fmt: skip
    if changes:
        columns = ("curve", "cliff", "at", f"in {a}", f"in {b}", "significant")
        print_table("cliffs that differ", columns, changes)
    for curve in found.curves:
        for words, dims in (("no longer safe", curve.safe_lost), ("now safe", curve.safe_gained)):
            if dims:
                say(f"{curve.curve}: {words}: {options.dims(dims)}")
    for name, only in ((a, found.only_a), (b, found.only_b)):
        if only:
            say(f"only in {name}: {'; '.join(only)}")
    say("significant differences" if found.differs else "no significant difference")


def _counts(changes: list[CliffChange]) -> str:
    verdicts = [change.verdict for change in changes]
    counted = (f"{verdicts.count(v)} {v}" for v in dict.fromkeys(verdicts))
    return ", ".join(counted) or "alike"


def _place(change: CliffChange) -> str:
    place = f"{change.before} → {change.after}"
    return place if change.to is None else f"{place}, now {change.to[0]} → {change.to[1]}"


def _jump(jump: float | None) -> str | None:
    return percent(jump, signed=True)


def check(
    cliff_map: MapName,
    device: Annotated[
        str | None,
        typer.Option(help="cpu, cuda or cuda:N. Default: the map's kind, if it is here."),
    ] = None,
    as_json: bool = Json,
) -> None:
    """Say whether a map holds for this machine's device and libraries. Exit code 1 if not."""
    from gacprof.cliffmap.compare import check as fit

    (loaded,) = options.load(cliff_map)
    from gacprof.devices.device import open_device

    here = open_device(device or ("cpu" if loaded.environment.kind == "cpu" else None)).environment
    found = fit(loaded, here)
    if as_json:
        print_json({**found.as_dict(), "here": here.as_dict()})
    else:
        say(f"{found.map} ({found.provenance}): {loaded.environment.name}; here: {here.name}")
        for line in found.lines:
            say(f"  {line}")
        say(
            "stale: it does not tell about this machine; measure it: gacprof sweep quick"
            if found.stale
            else "it fits this machine"
        )
    if found.stale:
        raise typer.Exit(1)
