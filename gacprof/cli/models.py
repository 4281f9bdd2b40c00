"""Verbs about checkpoints: ``diagnose``, ``realign``, ``verify``, ``bench``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gacprof.cli.model_tables import (
    print_diagnosis,
    print_realigned,
    print_timings,
    print_verification,
)
from gacprof.cli.parsing import token_counts, workload
from gacprof.cli.planning import Checkpoint, MapOption, Tokens, pareto, plan
from gacprof.cli.printing import Json, print_json, progress
from gacprof.core.errors import PlanError


def register(app: typer.Typer) -> None:
    for verb in (diagnose, plan, pareto, realign, verify, bench):
        app.command()(verb)


def diagnose(
    checkpoint: Checkpoint,
    cliff_map: MapOption,
    tokens: Tokens = None,
    dtype: Annotated[str | None, typer.Option(help="Default: the checkpoint's.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Print safe dims too.")] = False,
    as_json: bool = Json,
) -> None:
    """Say what each weight's dims cost on a device.

    Exit code 1 if any is misaligned, or if the map knows too little to judge any. Undecided dims
    are no finding: they are told, and the exit code is 0.
    """
    from gacprof.diagnosing import diagnose as judge

    found = judge(
        checkpoint, cliff_map, tokens=None if tokens is None else workload(tokens), dtype=dtype
    )
    if as_json:
        print_json(found.as_dict())
    else:
        print_diagnosis(found, every)
    if found.misaligned or not found.judged:
        raise typer.Exit(1)


def realign(
    checkpoint: Checkpoint,
    out: Annotated[Path, typer.Option(help="The new checkpoint's folder; must not exist.")],
    plan_file: Annotated[Path | None, typer.Option("--plan", help="A plan's file.")] = None,
    strategy: Annotated[
        str | None, typer.Option(help="Without a map: minimal pads to 8, optimal to 16.")
    ] = None,
    uniform: Annotated[
        bool, typer.Option("--uniform", help="One common width: a plain config.")
    ] = False,
    fuse_all: Annotated[
        bool, typer.Option("--fuse", help="Multiply factor pairs out into dense weights.")
    ] = False,
    module: Annotated[
        list[str] | None, typer.Option(help="With --fuse: only this module (repeatable).")
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(help="The dense original: raised ranks get what it has, not zeros."),
    ] = None,
    as_json: bool = Json,
) -> None:
    """Write the checkpoint anew with the plan's sizes. The input is never changed."""
    from gacprof import resizing

    if sum((plan_file is not None, strategy is not None, uniform, fuse_all)) != 1:
        raise PlanError("give one of --plan FILE, --strategy minimal|optimal, --uniform and --fuse")
    if base is not None and (uniform or fuse_all):
        raise PlanError("--base raises ranks: it goes with --plan or --strategy")
    if module and not fuse_all:
        raise PlanError("--module names what --fuse fuses: give --fuse too")
    with progress("realign") as advance:

        def tell(done: int, total: int) -> None:
            advance(done, total, "")

        if plan_file is not None:
            result = resizing.realign(checkpoint, plan_file, out, base=base, progress=tell)
        elif strategy is not None:
            result = resizing.realign_by_strategy(
                checkpoint,
                strategy,  # type: ignore[arg-type]  # checked there, with a message
                out,
                base=base,
                progress=tell,
            )
        elif fuse_all:
            result = resizing.fuse(checkpoint, out, module or None, progress=tell)
        else:
            result = resizing.realign_uniform(checkpoint, out, progress=tell)
    if as_json:
        print_json(result.as_dict())
        return
    print_realigned(result, base)


def verify(
    a: Annotated[str, typer.Argument(help="The reference checkpoint.")],
    b: Annotated[str, typer.Argument(help="The checkpoint to compare with it.")],
    dtype: Annotated[str | None, typer.Option(help="Computed in; default float32.")] = None,
    text: Annotated[Path | None, typer.Option(help="A text, for perplexity.")] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="A folder with a tokenizer; default: a's, else b's.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    as_json: bool = Json,
) -> None:
    """Run both models on the same inputs and report the error. Exit code 1 above tolerance."""
    from gacprof.evaluation import verify as compare

    check = compare(a, b, dtype=dtype, text=text, tokenizer=tokenizer, device=device)
    if as_json:
        print_json(check.as_dict())
    else:
        print_verification(check)
    if not check.passed:
        raise typer.Exit(1)


def bench(
    models: Annotated[list[str], typer.Argument(help="Checkpoints; ratios are to the first.")],
    tokens: Annotated[str, typer.Option(help="Prefill lengths.")] = "128,512,1024",
    decode_steps: Annotated[
        int, typer.Option(min=0, help="Decode steps of a model a round; 0 leaves decoding out.")
    ] = 8,
    batch: Annotated[int, typer.Option(min=1)] = 1,
    rounds: Annotated[
        int, typer.Option(min=12, help="At most; fewer where all verdicts are decided before.")
    ] = 384,
    time_cap: Annotated[float, typer.Option(min=0, help="Seconds; no round begins later.")] = 300,
    device: Annotated[str | None, typer.Option(help="Default: the first GPU, else CPU.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Default: as stored.")] = None,
    as_json: bool = Json,
) -> None:
    """Measure prefill and decode latency of models, interleaved, on the device at hand."""
    from gacprof.evaluation import bench as measure

    with progress("bench") as advance:
        timed = measure(
            models,
            tokens=token_counts(tokens),
            decode_steps=decode_steps,
            batch=batch,
            rounds=rounds,
            time_cap_s=time_cap,
            device=device,
            dtype=dtype,
            progress=advance,
        )
    if as_json:
        print_json(timed.as_dict())
        return
    print_timings(timed)
