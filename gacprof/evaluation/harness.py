"""lm-evaluation-harness on our loaded models: its tasks, its prompts, its numbers.

The harness knows hundreds of tasks and cannot load a compressed checkpoint; we can. So the model
is ours and everything else is the harness's own. Most of its tasks fetch their data from a hub.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from gacprof.checkpoint.load import dtype_of
from gacprof.core.errors import CheckpointError, first_line
from gacprof.core.files import Record
from gacprof.core.formatting import Framed
from gacprof.core.request import verb
from gacprof.evaluation.models import common_dtype, device_of, distinct_names, name_of, ready
from gacprof.evaluation.perplexity import common_tokenizer
from gacprof.evaluation.request import TasksRequest


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
class TaskScores(Framed, Record):
    """What the harness found, and its version."""

    scores: tuple[TaskScore, ...]
    version: str

    def frame_rows(self) -> Iterator[dict[str, Any]]:
        for score in self.scores:
            yield {name: held for name, held in vars(score).items() if name != "examples"}

    def frame_title(self) -> str:
        return f"lm-evaluation-harness {self.version}"


def _run_tasks(request: TasksRequest) -> TaskScores:
    """Run tasks of lm-evaluation-harness, one model in memory after the other.

    Raises :class:`CheckpointError` where the harness is not installed, has no such task, or fails.
    """
    lm_eval, wrapper = _harness()
    if not request.tasks:
        raise CheckpointError("name tasks of the harness (--tasks arc_easy,hellaswag)")
    models, folder, dtype = request.models, request.task_folder, request.dtype
    where = device_of(request.device)
    numbers = dtype_of(dtype) if dtype is not None else common_dtype(models)
    folders = [model for model in models if not isinstance(model, nn.Module)]
    chosen = common_tokenizer(folders, request.tokenizer, "")
    scores: list[TaskScore] = []
    for model, name in zip(models, distinct_names([name_of(m) for m in models]), strict=True):
        loaded = ready(model, numbers, where)
        try:
            manager = lm_eval.tasks.TaskManager(include_path=folder and str(folder))
            wrapped = wrapper(pretrained=loaded, tokenizer=chosen, batch_size=request.batch)
            found = lm_eval.simple_evaluate(
                model=wrapped, tasks=list(request.tasks), limit=request.limit, task_manager=manager
            )
        except Exception as error:  # the harness raises whatever its tasks and data sets do
            raise CheckpointError(f"lm-evaluation-harness: {first_line(error)}") from None
        scores += _scores(name, found["results"], found.get("samples") or {})
    return TaskScores(tuple(scores), str(lm_eval.__version__))


run_tasks = verb("run_tasks", TasksRequest, _run_tasks)


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
