"""Verbs for many devices at once: ``fleet sweep`` on Ray, and ``fleet compare``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from gacprof.cli.measuring import print_fleet
from gacprof.cli.options import Axis, Operator, Running, grouped, load_maps
from gacprof.cli.printing import MOST_ROWS, Json, emit, err, interruptible, print_table, say
from gacprof.core.errors import MapError
from gacprof.core.formatting import dims, percent

if TYPE_CHECKING:
    from rich.table import Table

    from gacprof.fleet.compare import Comparison
    from gacprof.fleet.driver import Watch
    from gacprof.fleet.members import Member

app = typer.Typer(no_args_is_help=True, help="Many devices: sweep them (on Ray), compare kinds.")

SHOWN = 16
"""Devices that the view of a sweep lists; of the others the kinds are summed up."""

Address = Annotated[
    str, Option(help="auto: this machine's cluster; local: this machine alone; ray://HOST:10001.")
]


@app.command()
@grouped
def sweep(
    *,
    suite: Annotated[str, Argument(help="A suite's name (quick, full, paper …) or a TOML file.")],
    out: Annotated[Path, Option(help="Folder for the samples: one in it a kind of device.")],
    address: Address = "auto",
    devices: Annotated[
        str, Option(help="cuda, cpu (each node), all. Default: GPUs, without any the CPUs.")
    ] = "auto",
    running: Running,
    wait: Annotated[
        float, Option(min=0.0, help="Seconds to wait for devices that do not come up.")
    ] = 120.0,
    as_json: bool = Json,
) -> None:
    """Measure a suite on every kind of device of a Ray cluster; equal devices split its curves."""
    from gacprof import api

    with _view(f"fleet sweep {suite}") as watch:
        done = api.sweep_fleet(
            suite, out=out, address=address, devices=devices, wait_s=wait, watch=watch,
            **vars(running),
        )  # fmt: skip
    emit(done, as_json, print_fleet)


@app.command()
def compare(
    maps: Annotated[list[str], Argument(metavar="MAP MAP…", help="One map a kind of device.")],
    operator: Operator = None,
    axis: Axis = None,
    price: Annotated[
        list[str] | None,
        Option("--price", metavar="MAP=USD", help="Of a device an hour; repeatable, * allowed."),
    ] = None,
    as_json: bool = Json,
) -> None:
    """Print which sizes are safe on all kinds of device, and what each kind loses by that."""
    from gacprof.fleet.compare import compare as compared

    found = compared(load_maps(*maps), _prices(price), operator, axis)
    emit(found, as_json, _print_compared)


def _prices(texts: Sequence[str] | None) -> dict[str, float]:
    """``["h100*=2.5"]`` as a dict. Raises :class:`MapError`."""
    found: dict[str, float] = {}
    for text in texts or ():
        name, _, usd = text.rpartition("=")
        try:
            found[name] = float(usd)
        except ValueError:
            name = ""
        if not name or not 0 < found[name] < 1e6:
            raise MapError(f"--price {text}: write it as MAP=USD an hour, such as h100=2.5")
    return found


def _print_compared(found: Comparison) -> None:
    letters = {kind: chr(ord("A") + i) for i, kind in enumerate(found.kinds)}
    columns = ["", "kind", "device", "loses, mean", "worst"]
    priced = ["USD a million tokens"] if found.prices else []
    rows: list[list[Any]] = [
        [letters[k], k, found.devices[k], percent(found.loss(k)), percent(found.worst(k))]
        + [_usd(found.usd(k)) for _ in priced]
        for k in found.kinds
    ]
    print_table("sizes safe on all, against each kind's own", columns + priced, rows)
    columns = ["curve", "safe on all"]
    columns += [f"{x}, {what}" for x in letters.values() for what in ("safe", "loses")]
    rows = []
    for c in found.curves[:MOST_ROWS]:
        of_kinds = [(c.kinds[k].safe, percent(c.kinds[k].loss)) for k in found.kinds]
        own = [cell for cells in of_kinds for cell in cells]
        rows.append([c.curve, f"{len(c.safe)} of {c.dims}", *own, dims(c.safe) or "none"])
    print_table("", [*columns, "sizes"], rows)
    if len(found.curves) > MOST_ROWS:
        say(f"{len(found.curves) - MOST_ROWS} more curves: --json has them, --op and --axis choose")
    if found.left:
        say(f"{len(found.left)} curves are not in every map and are left out")
    if found.prices:
        say("a million tokens once through each of these products, at sizes safe on all")


def _usd(value: float | None) -> str | None:
    return None if value is None else f"{value:.4g}"


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
