"""Verbs about what a model is worth: ``eval``, and ``import-gguf`` for where it comes from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from gacprof.cli.options import grouped
from gacprof.cli.printing import Json, emit, labelled, print_table, progress, say, say_notes
from gacprof.core.errors import CheckpointError
from gacprof.core.formatting import interval
from gacprof.evaluation.request import EvaluateRequest
from gacprof.resizing.request import ImportRequest

if TYPE_CHECKING:
    from gacprof.evaluation.evaluating import Quality
    from gacprof.evaluation.harness import TaskScores
    from gacprof.evaluation.perplexity import Perplexity
    from gacprof.resizing import ImportResult

HARNESS = "lm-evaluation-harness"


@grouped
def evaluate(
    asked: EvaluateRequest,
    *,
    tasks: Annotated[
        str | None,
        Option(
            rich_help_panel=HARNESS, metavar="TASK,…",
            help="Tasks of lm-evaluation-harness instead.",
        ),
    ] = None,
    task_folder: Annotated[
        Path | None, Option(rich_help_panel=HARNESS, help="With --tasks: where yours are.")
    ] = None,
    limit: Annotated[
        int | None,
        Option(min=1, rich_help_panel=HARNESS, help="With --tasks: examples of each."),
    ] = None,
    as_json: bool = Json,
) -> None:  # fmt: skip
    """Perplexity on a text, or tasks of lm-evaluation-harness, of several models side by side.

    Exit code 1 if a model's perplexity is not finite.
    """
    import gacprof

    if tasks is not None:
        if asked.text is not None:
            raise CheckpointError("--tasks goes without --text")
        from gacprof.evaluation.harness import run_tasks

        scores = run_tasks(
            asked.models, tasks.split(","), task_folder=task_folder, tokenizer=asked.tokenizer,
            limit=limit, batch=asked.batch, dtype=asked.dtype, device=asked.device,
        )  # fmt: skip
        emit(scores, as_json, print_task_scores)
        return
    with progress("eval") as advance:
        found = gacprof.evaluate(replace(asked, progress=advance))
    emit(found, as_json, print_quality)
    if not found.finite:
        raise typer.Exit(1)


def print_quality(found: Quality) -> None:
    rows: list[list[str | None]] = [
        [name, f"{m.parameters:,}", shown(m.perplexity)]
        for name, m in zip(labelled([m.model for m in found.models]), found.models, strict=True)
    ]
    columns = ["model", "parameters", "perplexity"]
    if len(rows) > 1:
        columns += ["against first (95 %)", "finding"]
        for row, m in zip(rows, found.models, strict=True):
            change = m.perplexity_change
            row += [None, None] if change is None else [
                interval(change.low, change.value, change.high, decimals=2), change.finding
            ]  # fmt: skip
    print_table("", columns, rows)
    say(
        f"{found.text}: {found.tokens:,} tokens, {found.tokens - 1:,} predicted, each once "
        f"(the first has no context), in {len(found.window_tokens)} windows of {found.window} by "
        f"{found.stride}"
    )
    say(f"in {found.dtype} on {found.device}")
    if len(rows) > 1:
        say(
            "differences to the first, paired by window; the intervals of a column hold together "
            "with 95 %"
        )
    say_notes(found.notes)


def shown(found: Perplexity) -> str:
    return "not finite" if found.value is None else f"{found.value:.3f}"


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


@grouped
def import_gguf(asked: ImportRequest, *, as_json: bool = Json) -> None:
    """Write a GGUF model as a plain Hugging Face folder: weights dequantised, tokenizer too."""
    import gacprof

    emit(gacprof.import_gguf(asked), as_json, _print_imported)


def _print_imported(result: ImportResult) -> None:
    tokenizer = "with" if result.tokenizer else "without"
    say(f"{result.parameters:,} parameters in {result.dtype}, {tokenizer} its tokenizer")
    say_notes(result.notes)
    say(f"checkpoint: {result.out}")
