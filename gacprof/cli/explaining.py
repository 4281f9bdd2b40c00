"""Verbs that give reasons: ``explain`` a dim, settle the ``disputes``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gacprof.cli import map_options as options
from gacprof.cli.map_options import Axis, Dtype, Fixed, Flags, MapName
from gacprof.cli.printing import Json, microseconds, percent, print_json, print_table, progress, say
from gacprof.core.errors import MapError, MeasurementError

if TYPE_CHECKING:
    from gacprof.cliffmap import CliffMap
    from gacprof.explain.causes import Explanation
    from gacprof.explain.disputes import Verdict


def register(app: typer.Typer) -> None:
    app.command()(explain)
    app.command()(disputes)


def explain(
    cliff_map: MapName,
    d: Annotated[int, typer.Option("--d", min=1, help="The dim.")],
    operator: Annotated[str, typer.Option("--op", help="linear, attention …")],
    axis: Axis = None,
    fixed: Fixed = None,
    dtype: Dtype = None,
    flag: Flags = None,
    samples: Annotated[
        Path | None, typer.Option(help="A sweep's folder with counters. Default: the map's own.")
    ] = None,
    as_json: bool = Json,
) -> None:
    """Say why a dim is slow: what serves it, what each cause costs, on what evidence."""
    from gacprof.explain.causes import explain_map
    from gacprof.kernels.beside import read_counters

    (loaded,) = options.load(cliff_map)
    if samples is not None:
        _check_samples(samples, loaded)
    folder = samples or Path(cliff_map).parent
    told = explain_map(
        loaded.file, operator, d, axis, dtype, options.sizes(fixed), options.flags(flag),
        read_counters(folder) if samples or Path(cliff_map).is_file() else {},
    )  # fmt: skip
    if as_json:
        print_json(told.as_dict())
        return
    _print_explanation(told, loaded.name)


def _check_samples(folder: Path, loaded: CliffMap) -> None:
    """Counters of another device say nothing about this map's cliffs."""
    from gacprof.kernels.beside import COUNTERS
    from gacprof.sweeping import environment_of

    of, device = environment_of(folder), loaded.environment
    if (of.kind, of.name, of.arch) != (device.kind, device.name, device.arch):
        raise MapError(
            f"{folder} was measured on {of.name} ({of.arch}), the map '{loaded.name}' is of "
            f"{device.name} ({device.arch}): give a sweep of that device with --samples"
        )
    if not (folder / COUNTERS).exists():
        raise MapError(
            f"{folder} holds no counters ({COUNTERS}): gacprof evidence ncu {folder} collects them"
        )


def disputes(
    device: Annotated[
        str | None, typer.Option(help="cuda or cuda:N. Default: the first GPU, if there is one.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the samples.")] = None,
    only: Annotated[list[int] | None, typer.Option(help="A dispute's number; repeatable.")] = None,
    as_json: bool = Json,
) -> None:
    """Settle what the papers disagree about, on the GPU at hand; without one, what can be."""
    from gacprof.explain.disputes import settle
    from gacprof.explain.disputes.measuring import check, settle_on

    numbers = check(only or ())
    at_hand = device or _first_gpu()
    if at_hand is None:
        _print_verdicts(settle(numbers=numbers), "no GPU at hand: settled without one", as_json)
        return
    if not at_hand.startswith("cuda"):
        raise MeasurementError(
            f"the disputes are about GPUs, not '{at_hand}': leave --device out to see which are "
            "settled without one"
        )
    from gacprof.devices.worker import sweeper
    from gacprof.sweeping.suite import Schedule

    with sweeper(at_hand, processes=Schedule().processes) as opened:
        name = opened.environment.name
        folder = out or Path("runs") / f"disputes-{re.sub(r'[^a-z0-9]+', '-', name.lower())}"
        with progress("disputes") as advance:
            done = settle_on(opened, folder, numbers, advance)
    told = f"{name}, noise floor {percent(done.floor)}; samples: {folder}"
    _print_verdicts(done.verdicts, told, as_json)


def _first_gpu() -> str | None:
    import torch

    return "cuda" if torch.cuda.is_available() else None


def _print_explanation(told: Explanation, name: str) -> None:
    say(told.row)
    rows = [
        (
            cause.kind, percent(cause.share), cause.sentence, cause.basis,
            ", ".join(cause.evidence) or None,
        )
        for cause in told.causes
    ]  # fmt: skip
    if rows:
        print_table("", ("cause", "share", "what", "basis", "evidence"), rows)
    say(f"{told.curve} of map {name}: {told.d} takes {microseconds(told.latency_us)}, "
        f"{told.reference} {microseconds(told.reference_us)}")  # fmt: skip


def _print_verdicts(verdicts: Sequence[Verdict], told: str, as_json: bool) -> None:
    if as_json:
        print_json([verdict.as_dict() for verdict in verdicts])
        return
    for verdict in verdicts:
        basis = f" ({verdict.basis})" if verdict.basis else ""
        say(f"{verdict.number}. {verdict.title}  {verdict.status}{basis}")
        say(f"   {verdict.finding}")
        for line in verdict.evidence:
            say(f"   – {line}")
        if verdict.needs and verdict.needs not in verdict.finding:
            say(f"   needs: {verdict.needs}")
    settled = sum(verdict.status == "settled" for verdict in verdicts)
    say(f"{settled} of {len(verdicts)} settled; {told}")
