"""Verbs about the device at hand: ``doctor`` and ``sweep``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gacprof.cli.parsing import token_counts
from gacprof.cli.printing import Json, print_json, print_table
from gacprof.core.errors import SuiteError

if TYPE_CHECKING:
    from gacprof.sweeping import Suite

Device = Annotated[
    str | None,
    typer.Option(
        help="cpu, cuda, cuda:N, or all (every GPU). Default: the first GPU, else the CPU."
    ),
]


def register(app: typer.Typer) -> None:
    app.command()(doctor)
    app.command()(sweep)


def doctor(as_json: bool = Json) -> None:
    """Say what can be measured on this machine, what not, and why."""
    from gacprof.devices.doctor import examine

    checks = examine()
    if as_json:
        print_json([check.as_dict() for check in checks])
        return
    marks = {True: "yes", False: "no", None: "–"}
    rows = [(c.name, marks[c.available], c.version, c.note) for c in checks]
    print_table("", ("component", "here", "version", "what follows"), rows)


def sweep(
    suite: Annotated[
        str | None,
        typer.Argument(help="A suite's name (quick, full, cpu, paper …) or a TOML file."),
    ] = None,
    device: Device = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the samples.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the sweep in --out.")
    ] = False,
    checkpoint: Annotated[
        str | None, typer.Option("--for", help="Sweep this checkpoint's own shapes instead.")
    ] = None,
    ranks: Annotated[
        str | None,
        typer.Option(
            "--ranks",
            metavar="DENSE|OUTxIN,…",
            help="Sweep the factor pairs instead that this dense checkpoint's linear layers, or "
            "weights of these shapes, would be cut into.",
        ),
    ] = None,
    rank_range: Annotated[
        str | None,
        typer.Option("--range", help="The ranks, with --ranks.", metavar="FIRST:LAST"),
    ] = None,
    tokens: Annotated[
        str, typer.Option(help="Token counts to serve, with --for and --ranks.", metavar="M,M,…")
    ] = "1,1024",
    dtype: Annotated[str, typer.Option(help="Compute dtype, with --for and --ranks.")] = "auto",
    window: Annotated[
        float, typer.Option(min=0.0, max=4.0, help="Candidates within ± this share, with --for.")
    ] = 0.25,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be measured.")] = False,
    budget: Annotated[
        str | None, typer.Option(help="End after this time; --resume takes the rest.", metavar="8m")
    ] = None,
    exhaustive: Annotated[
        bool, typer.Option("--exhaustive", help="Measure every point, refine nothing.")
    ] = False,
    isolate: Annotated[
        bool,
        typer.Option("--isolate/--no-isolate", help="Measure in worker processes, or in this one."),
    ] = True,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds for one block before a worker is replaced.")
    ] = 60.0,
    timer: Annotated[
        str, typer.Option(help="A GPU's timer: auto, cuda-graph or cuda-events.")
    ] = "auto",
    lock_clocks: Annotated[
        int | None,
        typer.Option(min=1, help="Lock the SM clock meanwhile (needs root).", metavar="MHZ"),
    ] = None,
    as_json: bool = Json,
) -> None:
    """Measure a suite's curves on a device, block by block; samples go to a folder as they come."""
    from gacprof.cli.sweeping import HowToSweep, dry_run_of, sweep_devices

    if resume and out is not None and suite is checkpoint is ranks is None:
        chosen = _of_folder(out)
    else:
        chosen = _chosen(suite, checkpoint, ranks, rank_range, tokens, dtype, window)
    if exhaustive:
        chosen = chosen.exhaustive()
    seconds = None if budget is None else duration_s(budget)
    if dry_run:
        dry_run_of(chosen, device, seconds, as_json)
        return
    how = HowToSweep(resume, seconds, isolate, timeout, timer, lock_clocks)
    sweep_devices(chosen, device, out, how, as_json)


def _of_folder(folder: Path) -> Suite:
    """The suite that the folder was begun with: what is gone on with need not be named again."""
    from gacprof.sweeping import suite_of

    return suite_of(folder)


def _chosen(
    suite: str | None,
    checkpoint: str | None,
    ranks: str | None,
    rank_range: str | None,
    tokens: str,
    dtype: str,
    window: float,
) -> Suite:
    from gacprof.sweeping import load_suite

    if sum(given is not None for given in (suite, checkpoint, ranks)) != 1:
        raise SuiteError("give one of a suite, --for CHECKPOINT and --ranks DENSE")
    if (ranks is None) != (rank_range is None):
        raise SuiteError("--ranks and --range go together: --ranks DENSE --range 64:256")
    if suite is not None:
        return load_suite(suite)
    if ranks is not None:
        return _for_ranks(ranks, str(rank_range), token_counts(tokens), dtype)
    from gacprof.checkpoint import scan
    from gacprof.sweeping.for_checkpoint import suite_for

    assert checkpoint is not None
    return suite_for(scan(checkpoint), token_counts(tokens), dtype=dtype, window=window)


def _for_ranks(dense: str, rank_range: str, tokens: list[int], dtype: str) -> Suite:
    """Of a checkpoint, or of shapes such as ``4096x4096,11008x4096``. Raises
    :class:`SuiteError`."""
    from gacprof.sweeping.for_checkpoint import suite_for_ranks, suite_for_ranks_of

    match = re.fullmatch(r"(\d{1,9}):(\d{1,9})", rank_range.strip())
    if not match:
        raise SuiteError(f"--range is '{rank_range}': give the first and the last rank, as 64:256")
    first_and_last = int(match[1]), int(match[2])
    shapes = re.findall(r"([1-9]\d{0,8})x([1-9]\d{0,8})(?:,|$)", dense)
    if ",".join(f"{o}x{i}" for o, i in shapes) == dense:
        pairs = [(int(o), int(i)) for o, i in shapes]
        return suite_for_ranks(pairs, first_and_last, tokens, dtype=dtype)
    from gacprof.checkpoint import scan

    return suite_for_ranks_of(scan(dense), first_and_last, tokens, dtype=dtype)


def duration_s(text: str) -> float:
    """``90``, ``90s``, ``8m``, ``1h`` as seconds. Raises :class:`SuiteError`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    if not match or not float(match[1]):
        raise SuiteError(f"--budget is '{text}': give a time such as 90s, 8m or 1h")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]
