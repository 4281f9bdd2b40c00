"""Verbs about the device at hand: ``doctor`` and ``sweep``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from gacprof.cli.parsing import token_counts
from gacprof.cli.printing import Json, print_json, print_table, progress, say
from gacprof.errors import SuiteError

Device = Annotated[
    str | None, typer.Option(help="cpu, cuda or cuda:N. Default: the first GPU, else the CPU.")
]


def register(app: typer.Typer) -> None:
    app.command()(doctor)
    app.command()(sweep)


def doctor(as_json: bool = Json) -> None:
    """Say what can be measured on this machine, what not, and why."""
    from gacprof.measure.doctor import examine

    checks = examine()
    if as_json:
        print_json([check.as_dict() for check in checks])
        return
    marks = {True: "yes", False: "no", None: "–"}
    rows = [(c.name, marks[c.available], c.version, c.note) for c in checks]
    print_table("", ("component", "here", "version", "what follows"), rows)


def sweep(
    suite: Annotated[
        str | None, typer.Argument(help="A suite's name (quick, cpu, paper) or a TOML file.")
    ] = None,
    device: Device = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the samples.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a sweep.")] = False,
    checkpoint: Annotated[
        str | None, typer.Option("--for", help="Sweep this checkpoint's own shapes instead.")
    ] = None,
    tokens: Annotated[
        str, typer.Option(help="Token counts to serve, with --for.", metavar="M,M,…")
    ] = "1,1024",
    dtype: Annotated[str, typer.Option(help="Compute dtype, with --for.")] = "auto",
    window: Annotated[
        float, typer.Option(min=0.0, max=4.0, help="Candidates within ± this share, with --for.")
    ] = 0.25,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be measured.")] = False,
    as_json: bool = Json,
) -> None:
    """Measure a suite's points on a device; samples go to a folder as they come."""
    from gacprof.sweeping import Suite, load_suite

    if (suite is None) == (checkpoint is None):
        raise SuiteError("give either a suite or --for CHECKPOINT")
    chosen: Suite
    if checkpoint is not None:
        from gacprof.checkpoint import scan
        from gacprof.sweeping.for_checkpoint import suite_for

        chosen = suite_for(scan(checkpoint), token_counts(tokens), dtype=dtype, window=window)
    else:
        assert suite is not None
        chosen = load_suite(suite)
    if dry_run:
        _dry_run(chosen, device, as_json)
        return

    from gacprof.measure.device import open_device
    from gacprof.sweeping import run_sweep

    opened = open_device(device)
    folder = out or Path("runs") / f"{chosen.name}-{_slug(opened.environment.name)}"
    with progress(f"sweep {chosen.name}") as advance:
        try:
            summary = run_sweep(chosen, opened, folder, resume=resume, progress=advance)
        except KeyboardInterrupt:
            say(f"interrupted; what was measured is in {folder}, go on with --resume")
            raise
    if as_json:
        print_json(summary.as_dict())
        return
    say(
        f"{summary.points} points, {summary.visits} visits, {summary.failed} failed, "
        f"{summary.seconds:.1f} s on {opened.environment.name}"
    )
    say(f"samples: {folder}    next: gacprof map build {folder}")


def _dry_run(suite: object, device: str | None, as_json: bool) -> None:
    from gacprof.sweeping import Suite
    from gacprof.sweeping.order import visits

    assert isinstance(suite, Suite)
    kind = (device or _default_kind()).partition(":")[0]
    points, timing = suite.points(kind), suite.timing
    order = visits(points, timing.passes, timing.duplicates, timing.least_duplicates, timing.seed)
    data = {
        "suite": suite.name,
        "device": kind,
        "points": len(points),
        "visits": len(order),
        "longest_s": round(len(order) * timing.cap_ms / 1e3, 1) if timing.count is None else None,
    }
    if as_json:
        print_json(data | {"of": [str(point) for point in points]})
        return
    say(f"suite {suite.name} on {kind}: {len(points)} points, {len(order)} visits")
    if data["longest_s"] is not None:
        say(
            f"about {data['longest_s']} s of timing at most "
            f"(points slower than {timing.cap_ms / timing.least:g} ms a call take longer)"
        )
    else:
        say(f"{timing.count} timings a visit: the time depends on the device")


def _default_kind() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
