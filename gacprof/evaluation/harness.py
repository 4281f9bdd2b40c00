"""lm-evaluation-harness on our loaded models: its tasks, its prompts, its numbers.

The harness knows hundreds of tasks and cannot load a compressed checkpoint; we can. So the model
is ours and everything else is the harness's own. Most of its tasks fetch their data from a hub.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gacprof.checkpoint.load import dtype_of
from gacprof.core.errors import CheckpointError, first_line
from gacprof.core.files import Record
from gacprof.evaluation.models import Model, common_dtype, device_of, distinct_names, name_of, ready
from gacprof.evaluation.perplexity import common_tokenizer


@dataclass(frozen=True)
class TaskScore:
    """One metric of one task, as the harness names it (``acc,none``), with its standard error and
    its value for every example."""

    model: str
    task: str
    metric: str
    value: float
    error: float | None
    examples: tuple[float, ...] = ()


@dataclass(frozen=True)
class TaskScores(Record):
    """What the harness found, and its version."""

    scores: tuple[TaskScore, ...]
    version: str


def run_tasks(
    models: Sequence[Model],
    tasks: Sequence[str],
    *,
    task_folder: str | Path | None = None,
    tokenizer: str | Path | None = None,
    limit: int | None = None,
    batch: int = 1,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
) -> TaskScores:
    """Run tasks of the harness, one model in memory after the other.

    ``task_folder`` holds tasks of your own; ``limit`` is how many examples of a task to take.
    Raises :class:`CheckpointError` where the harness is not installed, has no such task, or fails.
    """
    lm_eval, wrapper = _harness()
    where = device_of(device)
    numbers = dtype_of(dtype) if dtype is not None else common_dtype(models)
    folders = [model for model in models if not isinstance(model, nn.Module)]
    chosen = common_tokenizer(folders, tokenizer, "")
    scores: list[TaskScore] = []
    for model, name in zip(models, distinct_names([name_of(m) for m in models]), strict=True):
        loaded = ready(model, numbers, where)
        try:
            manager = lm_eval.tasks.TaskManager(include_path=task_folder and str(task_folder))
            wrapped = wrapper(pretrained=loaded, tokenizer=chosen, batch_size=batch)
            found = lm_eval.simple_evaluate(
                model=wrapped, tasks=list(tasks), limit=limit, task_manager=manager
            )
        except Exception as error:  # the harness raises whatever its tasks and data sets do
            raise CheckpointError(f"lm-evaluation-harness: {first_line(error)}") from None
        scores += _scores(name, found["results"], found.get("samples") or {})
    return TaskScores(tuple(scores), str(lm_eval.__version__))


def _harness() -> tuple[Any, Any]:
    """The package and its wrapper of a transformers model."""
    try:
        import lm_eval
        import lm_eval.tasks
        from lm_eval.models.huggingface import HFLM
    except ImportError as error:
        raise CheckpointError(
            f"tasks need lm-evaluation-harness: pip install 'gacprof[lm-eval]' ({error})"
        ) from None
    return lm_eval, HFLM


def _scores(
    model: str, results: dict[str, dict[str, Any]], samples: dict[str, list[dict[str, Any]]]
) -> list[TaskScore]:
    found = []
    for task, metrics in results.items():
        for metric, value in metrics.items():
            if isinstance(value, int | float) and "_stderr" not in metric and "," in metric:
                name, _, filtered = metric.partition(",")
                error = metrics.get(f"{name}_stderr,{filtered}")
                spread = float(error) if isinstance(error, int | float) else None
                each = tuple(
                    float(one[name])
                    for one in samples.get(task, ())
                    if one.get("filter") == filtered and name in one
                )
                found.append(TaskScore(model, task, metric, float(value), spread, each))
    return found
