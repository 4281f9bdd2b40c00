"""Verbs about what a model is worth: ``eval``, and ``import-gguf`` for where it comes from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from gacprof.cli.options import Fleet, OneDevice, Tokenizer
from gacprof.cli.printing import Json, emit, labelled, print_table, progress, say, say_notes
from gacprof.core.errors import CheckpointError
from gacprof.core.formatting import interval, percent

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
    tokenizer: Tokenizer = None,
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
    from gacprof.fleet.on_ray import tasks_on

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
    label = labelled([model.model for model in found.models])
    if found.tokens:
        print_table("", *_perplexities(found, label))
    if found.questions:
        print_table("", *_answers(found, label))
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


Table = tuple[list[str], list[list[str | None]]]
"""Columns and rows."""


def _perplexities(found: Quality, label: Sequence[str]) -> Table:
    rows: list[list[str | None]] = [
        [name, f"{m.parameters:,}", _perplexity(m)]
        for name, m in zip(label, found.models, strict=True)
    ]
    if len(rows) == 1:
        return ["model", "parameters", "perplexity"], rows
    for row, m in zip(rows, found.models, strict=True):
        row += [_change(m.perplexity_change), _finding(m.perplexity_change)]
    return ["model", "parameters", "perplexity", "against first (95 %)", "finding"], rows


def _answers(found: Quality, label: Sequence[str]) -> Table:
    answered = [(name, m) for name, m in zip(label, found.models, strict=True) if m.accuracy]
    columns = ["model"]
    rows: list[list[str | None]] = [[name] for name, _ in answered]
    several = len(rows) > 1
    for row, (_, m) in zip(rows, answered, strict=True):
        assert m.accuracy is not None
        row.append(_share(m.accuracy.value))
        row += [_change(m.accuracy_change)] * several
        row.append(_share(m.accuracy.normalised))
        row += [_change(m.accuracy_normalised_change)] * several
    for title in ("right", "normalised"):
        columns += [title, "against first (95 %)"] if several else [title]
    return columns, rows


def _perplexity(model: ModelQuality) -> str:
    value = model.perplexity.value if model.perplexity else None
    return "not finite" if value is None else f"{value:.3f}"


def _share(value: float | None) -> str:
    return percent(value) or "not finite"


def _change(change: Change | None) -> str | None:
    if change is None:
        return None
    return interval(change.low, change.value, change.high, decimals=2)


def _finding(change: Change | None) -> str | None:
    return None if change is None else change.finding


def print_task_scores(found: TaskScores) -> None:
    names = list(dict.fromkeys(s.model for s in found.scores))
    label = dict(zip(names, labelled(names), strict=True))
    rows = [
        (
            label[s.model], s.task, s.metric, f"{s.value:.4f}",
            None if s.error is None else f"{s.error:.4f}",
        )
        for s in found.scores
    ]  # fmt: skip
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
