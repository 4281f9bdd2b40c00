"""The verb ``export``: a checkpoint for the engine that serves it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from gacprof.cli.options import Checkpoint
from gacprof.cli.printing import Json, emit, progress, say, say_notes

if TYPE_CHECKING:
    from gacprof.exporting import Check, Exported


def export(
    checkpoint: Checkpoint,
    to: Annotated[str, Option(help="transformers, vllm, vllm-native, gguf or uniform.")],
    out: Annotated[
        Path | None, Option(help="The new folder; default: MODEL-FORMAT in this one.")
    ] = None,
    type_: Annotated[
        str | None, Option("--type", help="Of gguf: f32, f16 (the default), bf16, q8_0, q4_0.")
    ] = None,
    blocks_of: Annotated[
        int | None, Option(help="Of vllm-native: 256 pads widths for SGLang, TensorRT-LLM, mlx.")
    ] = None,
    tokenizer: Annotated[
        Path | None, Option(help="The tokenizer's folder; default: the checkpoint's.")
    ] = None,
    tokenizer_pre: Annotated[
        str | None, Option(help="Of gguf: llama.cpp's name of the pre-tokenizer.")
    ] = None,
    check: Annotated[
        str, Option(help="engine runs it, tensors reads it back; auto: the engine if it can.")
    ] = "auto",
    as_json: bool = Json,
) -> None:
    """Write the checkpoint for an engine, and check it. Exit code 1 if the check fails."""
    import gacprof

    with progress("export") as advance:
        done = gacprof.export(
            checkpoint,
            to,
            out,
            type=type_,
            blocks_of=blocks_of,
            tokenizer=tokenizer,
            tokenizer_pre=tokenizer_pre,
            check=check,  # type: ignore[arg-type]  # checked there, with a message
            progress=advance,
        )
    emit(done, as_json, print_exported)
    if not done.check.passed:
        raise typer.Exit(1)


def print_exported(done: Exported) -> None:
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
        told = f"checked by {check.engine}: {check.same} of {check.tokens} greedy tokens are ours"
        tie = "; they part where our two best logits tie" if check.near_tie else ""
        lines.append(f"{told}{tie}, largest difference {check.error:.2g}: {verdict}")
    return lines
