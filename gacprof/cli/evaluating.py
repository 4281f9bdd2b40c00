"""Verbs about what a model is worth: ``eval``, and ``import-gguf`` for where it comes from."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from gacprof.cli.options import Output, from_requests
from gacprof.cli.printing import emit, labelled, print_table, progress, say, say_notes
from gacprof.core.errors import CheckpointError
from gacprof.core.formatting import interval
from gacprof.evaluation.request import EvaluateRequest, OnTasks, TasksRequest
from gacprof.resizing.request import ImportRequest

if TYPE_CHECKING:
    from gacprof.evaluation.evaluating import Quality
    from gacprof.evaluation.harness import TaskScores
    from gacprof.evaluation.perplexity import Perplexity
    from gacprof.resizing import ImportResult


@from_requests
def evaluate(asked: EvaluateRequest, harness: OnTasks, output: Output) -> None:
    """Measure perplexity or tasks of several models.

    On a text, or by lm-evaluation-harness; the first model is the reference.

    Exit code 1 if a model's perplexity is not finite.
    """
    import gacprof

    if harness.tasks is not None:
        if asked.text is not None:
            raise CheckpointError("--tasks goes without --text")
        scores = gacprof.run_tasks(TasksRequest.joined(asked, harness))
        emit(scores, output.as_json, print_task_scores)
        return
    with progress("eval") as advance:
        found = gacprof.evaluate(replace(asked, progress=advance))
    emit(found, output.as_json, print_quality)
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


@from_requests
def import_gguf(asked: ImportRequest, output: Output) -> None:
    """Write a GGUF model as a Hugging Face folder.

    Weights are dequantised; the tokenizer comes along."""
    import gacprof

    emit(gacprof.import_gguf(asked), output.as_json, _print_imported)


def _print_imported(result: ImportResult) -> None:
    tokenizer = "with" if result.tokenizer else "without"
    say(f"{result.parameters:,} parameters in {result.dtype}, {tokenizer} its tokenizer")
    say_notes(result.notes)
    say(f"checkpoint: {result.out}")
