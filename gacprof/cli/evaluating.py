"""Verbs about what a model is worth: ``eval``, and ``import-gguf`` for where it comes from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from gacprof.cli.options import Fleet, OneDevice
from gacprof.cli.printing import Json, emit, print_table, progress, say, say_notes
from gacprof.core.errors import CheckpointError
from gacprof.core.formatting import percent

if TYPE_CHECKING:
    from gacprof.evaluation import Change, ModelQuality, Quality
    from gacprof.evaluation.harness import TaskScores
    from gacprof.resizing import ImportResult


def evaluate(
    models: Annotated[list[str], Argument(help="Checkpoints; differences are to the first.")],
    text: Annotated[Path | None, Option(help="A text file, for perplexity.")] = None,
    choices: Annotated[
        Path | None,
        Option(help="Multiple choice: JSON lines with question, choices and answer (an index)."),
    ] = None,
    tokenizer: Annotated[
        Path | None, Option(help="A folder with a tokenizer. Default: the models' own.")
    ] = None,
    window: Annotated[
        int | None, Option(min=1, help="Tokens seen at once. Default: 1024, or the positions.")
    ] = None,
    stride: Annotated[
        int | None, Option(min=1, help="Tokens from window to window. Default: half a window.")
    ] = None,
    limit_tokens: Annotated[
        int | None, Option(min=2, help="Take only the first tokens of the text.")
    ] = None,
    batch: Annotated[int, Option(min=1, help="Windows at once.")] = 1,
    tasks: Annotated[
        str | None, Option(help="Tasks of lm-evaluation-harness instead.", metavar="TASK,…")
    ] = None,
    task_folder: Annotated[Path | None, Option(help="With --tasks: where yours are.")] = None,
    limit: Annotated[int | None, Option(min=1, help="With --tasks: examples of each.")] = None,
    dtype: Annotated[str | None, Option(help="Computed in. Default: as stored.")] = None,
    device: OneDevice = None,
    fleet: Fleet = None,
    as_json: bool = Json,
) -> None:
    """Perplexity on a text and accuracy on multiple choice, of several models side by side.

    Exit code 1 if a model's numbers are not finite.
    """
    import gacprof
    from gacprof.fleet.models import tasks_on

    if tasks is not None:
        if fleet is not None:
            raise CheckpointError("--tasks runs on this machine: leave out --fleet")
        if text is not None or choices is not None:
            raise CheckpointError("--tasks goes without --text and --choices")
        from gacprof.evaluation.harness import run_tasks

        scores = run_tasks(
            models, tasks.split(","), task_folder=task_folder, tokenizer=tokenizer,
            limit=limit, batch=batch, dtype=dtype, device=device,
        )  # fmt: skip
        emit(scores, as_json, print_task_scores)
        return
    with progress("eval") as advance, tasks_on(fleet, device) as elsewhere:
        found = gacprof.evaluate(
            models, text=text, choices=choices, tokenizer=tokenizer, window=window, stride=stride,
            limit_tokens=limit_tokens, batch=batch, dtype=dtype, device=device, progress=advance,
            tasks=elsewhere,
        )  # fmt: skip
    emit(found, as_json, print_quality)
    if not found.finite:
        raise typer.Exit(1)


def print_quality(found: Quality) -> None:
    print_table("", *_table(found))
    if found.tokens:
        windows = len(found.window_tokens)
        say(
            f"{found.text}: {found.tokens:,} tokens, {found.tokens - 1:,} predicted, each once "
            f"(the first has no context), in {windows} windows of {found.window} by {found.stride}"
        )
    if found.questions:
        say(
            f"{found.choices}: {found.questions} questions, chance {percent(found.chance)}; "
            "normalised is by a choice's length in characters"
        )
    say(f"in {found.dtype} on {found.device}")
    if len(found.models) > 1:
        say(
            "differences to the first, paired by window or question; the intervals of a column "
            "hold together with 95 %"
        )
    say_notes(found.notes)


def _table(found: Quality) -> tuple[list[str], list[list[str | int | None]]]:
    """Columns and rows; only what was asked for."""
    several = len(found.models) > 1
    columns = ["model", "parameters"]
    rows: list[list[str | int | None]] = [[m.model, f"{m.parameters:,}"] for m in found.models]

    def column(title: str, cells: Sequence[str | None]) -> None:
        columns.append(title)
        for row, cell in zip(rows, cells, strict=True):
            row.append(cell)

    if found.tokens:
        column("perplexity", [_perplexity(m) for m in found.models])
        if several:
            column("difference", [_change(m.perplexity_change) for m in found.models])
            column("finding", [_finding(m.perplexity_change) for m in found.models])
    if found.questions:
        answered = [m.accuracy for m in found.models if m.accuracy is not None]
        column("right", [_share(accuracy.value) for accuracy in answered])
        if several:
            column("difference", [_change(m.accuracy_change) for m in found.models])
        column("normalised", [_share(accuracy.normalised) for accuracy in answered])
        if several:
            column("difference", [_change(m.accuracy_normalised_change) for m in found.models])
    return columns, rows


def _perplexity(model: ModelQuality) -> str:
    value = model.perplexity.value if model.perplexity else None
    return "not finite" if value is None else f"{value:.3f}"


def _share(value: float | None) -> str:
    return percent(value) or "not finite"


def _change(change: Change | None) -> str | None:
    if change is None:
        return None
    low, value, high = (percent(v, True, 2) for v in (change.low, change.value, change.high))
    return f"{value} ({low} to {high})"


def _finding(change: Change | None) -> str | None:
    return None if change is None else change.finding


def print_task_scores(found: TaskScores) -> None:
    rows = [
        (s.model, s.task, s.metric, f"{s.value:.4f}", None if s.error is None else f"{s.error:.4f}")
        for s in found.scores
    ]
    print_table("", ("model", "task", "metric", "value", "standard error"), rows)
    say(f"lm-evaluation-harness {found.version}")


def import_gguf(
    source: Annotated[str, Argument(metavar="GGUF", help="A *.gguf file, or a folder with one.")],
    out: Annotated[Path, Option(help="The new checkpoint's folder; must not exist.")],
    dtype: Annotated[str, Option(help="Of the weights written.")] = "bfloat16",
    as_json: bool = Json,
) -> None:
    """Write a GGUF model as a plain Hugging Face folder: weights dequantised, tokenizer too."""
    import gacprof

    emit(gacprof.import_gguf(source, out, dtype=dtype), as_json, _print_imported)


def _print_imported(result: ImportResult) -> None:
    tokenizer = "with" if result.tokenizer else "without"
    say(f"{result.parameters:,} parameters in {result.dtype}, {tokenizer} its tokenizer")
    say_notes(result.notes)
    say(f"checkpoint: {result.out}")
