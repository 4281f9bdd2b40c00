"""How good? Perplexity and multiple choice of several models, on the same tokens.

One model is in memory after the other. What every model is asked is made once, before the first
is loaded: the windows of the text and the questions as token ids, so that a wrong file costs no
time.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from gacprof.checkpoint import scan
from gacprof.checkpoint.config import config_of_part
from gacprof.checkpoint.load import dtype_of
from gacprof.core import Progress
from gacprof.core.errors import CheckpointError, MeasurementError, first_line
from gacprof.core.tasks import Tasks
from gacprof.evaluation.choices import (
    Question,
    Request,
    groups_of,
    picked,
    read_questions,
    requests,
    score_requests,
)
from gacprof.evaluation.comparison import LEVEL
from gacprof.evaluation.models import (
    Model,
    common_dtype,
    device_of,
    distinct_names,
    name_of,
    ready,
    text_config,
)
from gacprof.evaluation.perplexity import (
    Scorer,
    TextScore,
    Window,
    common_tokenizer,
    encode,
    read_text,
    score_windows,
    windows,
)
from gacprof.evaluation.quality import (
    ModelQuality,
    Quality,
    chance,
    compared,
    with_choices,
    with_text,
)

WINDOW = 1024
"""Tokens that a model sees at once, unless it has fewer positions."""


@dataclass(frozen=True)
class _Task:
    """What every model is asked: the same tokens for all."""

    window: int
    stride: int
    batch: int
    ids: torch.Tensor | None
    questions: tuple[Question, ...]
    asked: list[list[Request]]

    @property
    def largest_id(self) -> int:
        """Of all token ids that a model is asked about."""
        text = -1 if self.ids is None else int(self.ids.max())
        return max([text, *(i for own in self.asked for request in own for i in request.ids)])

    @property
    def work(self) -> int:
        """Predictions and choices of one model."""
        predictions = 0 if self.ids is None else len(self.ids) - 1
        return predictions + sum(map(len, self.asked))

    @property
    def windows(self) -> list[Window]:
        return [] if self.ids is None else windows(len(self.ids), self.window, self.stride)

    @property
    def most_tokens(self) -> int:
        """Of requests in one forward pass."""
        return self.window * self.batch

    def pieces(self, count: int) -> list[_Piece]:
        """At most so many parts of nearly equal size, of whole batches: which windows and requests
        run together does not depend on ``count``, and so nor does any result."""
        flat = [request for choices in self.asked for request in choices]
        groups = [[flat[i] for i in group] for group in groups_of(self.asked, self.most_tokens)]
        batches = -(-len(self.windows) // self.batch)
        count = max(1, min(count, max(batches, len(groups))))
        parts = [(i / count, (i + 1) / count) for i in range(count)]
        return [
            _Piece(
                self.batch,
                self.ids,
                self.windows[int(a * batches) * self.batch : int(b * batches) * self.batch],
                groups[int(a * len(groups)) : int(b * len(groups))],
                self.largest_id,
            )
            for a, b in parts
        ]


def evaluate(
    models: Sequence[Model] | Model,
    *,
    text: str | Path | None = None,
    choices: str | Path | None = None,
    tokenizer: str | Path | None = None,
    window: int | None = None,
    stride: int | None = None,
    limit_tokens: int | None = None,
    batch: int = 1,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
    progress: Progress = lambda done, total, what: None,
    tasks: Tasks | None = None,
) -> Quality:
    """The perplexity of the file ``text`` and the accuracy on the questions of ``choices``.

    ``window`` is how many tokens a model sees at once, by default 1024 or what it has positions
    for; ``stride`` how far windows are apart, by default half a window. ``limit_tokens`` cuts
    the text. ``batch`` windows run at once. ``tokenizer`` is a folder; by default the one that
    the models bring. ``dtype`` defaults to the stored one, the widest of all models. ``tasks``
    score parts of it elsewhere, as :mod:`gacprof.fleet.on_ray` does; every number stays the same.

    Raises :class:`CheckpointError` for a model, text or file of questions that cannot be used,
    :class:`MeasurementError` for a device that is not there or too small.
    """
    given = [models] if isinstance(models, str | Path | nn.Module) else list(models)
    if not given or (text is None and choices is None):
        raise CheckpointError("give a model, and a text or a file of questions (--text, --choices)")
    where = device_of(device)
    numbers = dtype_of(dtype) if dtype is not None else common_dtype(given)
    size, step = _window(given, window, stride, batch)
    task = _task(given, text, choices, tokenizer, size, step, limit_tokens, batch)
    names = distinct_names([name_of(model) for model in given])
    shares = [_share(progress, i, len(given), task, name) for i, name in enumerate(names)]
    found = [
        _scored(_Subject(model, name, numbers, where), task, advance, tasks or Tasks())
        for model, name, advance in zip(given, names, shares, strict=True)
    ]
    level = LEVEL / max(1, len(given) - 1)
    counts = () if task.ids is None else [w.predictions for w in windows(len(task.ids), size, step)]
    return Quality(
        models=compared(found, counts, level),
        dtype=str(numbers).removeprefix("torch."),
        device=str(where),
        window=size,
        stride=step,
        text=None if text is None else str(text),
        tokens=0 if task.ids is None else len(task.ids),
        window_tokens=tuple(counts),
        choices=None if choices is None else str(choices),
        questions=len(task.questions),
        chance=chance(task.questions),
        level=level,
        notes=tuple(_notes(given, task)),
    )


def _window(
    models: Sequence[Model], window: int | None, stride: int | None, batch: int
) -> tuple[int, int]:
    """Window and stride, as asked for or by default. Raises :class:`CheckpointError`."""
    held = {name_of(model): positions_of(model) for model in models}
    least = min((n for n in held.values() if n), default=None)
    size = window if window is not None else min(WINDOW, least or WINDOW)
    step = stride if stride is not None else max(1, size // 2)
    if size < 1 or batch < 1:
        raise CheckpointError(f"{batch} windows of {size} tokens at once: both are at least 1")
    if not 1 <= step <= size:
        raise CheckpointError(
            f"a stride of {step} tokens between windows of {size}: it is from 1 to {size}"
        )
    for name, positions in held.items():
        if positions and size > positions:
            raise CheckpointError(
                f"{name} has {positions} positions (max_position_embeddings): a window of {size} "
                "tokens does not fit"
            )
    return size, step


def positions_of(model: Model) -> int | None:
    """How many tokens a model has positions for, by its config; None where it does not say."""
    if isinstance(model, nn.Module):
        found = getattr(text_config(model), "max_position_embeddings", None)
    else:
        config = config_of_part(scan(model).config)
        found = config.get("max_position_embeddings") or config.get("n_positions")
    return found if isinstance(found, int) else None


def _task(
    models: Sequence[Model],
    text: str | Path | None,
    choices: str | Path | None,
    tokenizer: str | Path | None,
    window: int,
    stride: int,
    limit: int | None,
    batch: int,
) -> _Task:
    if limit is not None and limit < 2:
        raise CheckpointError("a limit of fewer than two tokens leaves nothing to predict")
    content = None if text is None else read_text(text)
    questions = () if choices is None else read_questions(choices)
    folders = [model for model in models if not isinstance(model, nn.Module)]
    sample = content or "\n".join(question.context for question in questions)
    chosen = common_tokenizer(folders, tokenizer, sample)
    ids = None if content is None else encode(chosen, content, limit)
    return _Task(window, stride, batch, ids, questions, requests(chosen, questions, window))


def _share(
    progress: Progress, index: int, models: int, task: _Task, name: str
) -> Callable[[int], None]:
    """Progress of one model as progress of all."""
    done = index * task.work

    def advance(more: int) -> None:
        nonlocal done
        done += more
        progress(done, models * task.work, name)

    return advance


@dataclass(frozen=True)
class _Piece:
    """A part of what a model is asked: windows of the text, groups of requests."""

    batch: int
    ids: torch.Tensor | None
    windows: Sequence[Window]
    groups: Sequence[Sequence[Request]]
    largest_id: int

    @property
    def work(self) -> int:
        return sum(w.predictions for w in self.windows) + sum(map(len, self.groups))


class _Subject(NamedTuple):
    """A model that is evaluated, and how it runs."""

    model: Model
    name: str
    dtype: torch.dtype
    device: torch.device


class _Scored(NamedTuple):
    parameters: int
    nll: list[float]
    requests: list[float]


def _scored(
    one: _Subject, task: _Task, advance: Callable[[int], None], tasks: Tasks
) -> ModelQuality:
    """One model's scores, a piece of them a task."""
    if isinstance(one.model, nn.Module):
        tasks = Tasks()  # what is in memory here stays here
    pieces = task.pieces(max(1, tasks.ahead))
    if tasks.ahead:
        wanted = [tasks.submit(_answer, one, piece) for piece in pieces]
    else:
        wanted = [tasks.submit(_answer, one, pieces[0], advance)]
    found: list[_Scored] = []
    for piece, result in zip(pieces, wanted, strict=True):
        found.append(result())
        if tasks.ahead:
            advance(piece.work)
    quality = ModelQuality(one.name, name_of(one.model), found[0].parameters)
    if task.ids is not None:
        nll = tuple(x for part in found for x in part.nll)
        quality = with_text(quality, TextScore(nll, tuple(w.predictions for w in task.windows)))
    if task.questions:
        scores = [x for part in found for x in part.requests]
        answers = picked(task.questions, task.asked, task.most_tokens, scores)
        quality = with_choices(quality, answers, task.questions)
    return quality


def _answer(
    one: _Subject, piece: _Piece, advance: Callable[[int], object] = lambda more: None
) -> _Scored:
    """Score a piece; a model that was loaded for it is let go."""
    try:
        return _run(ready(one.model, one.dtype, one.device), name_of(one.model), piece, advance)
    except torch.OutOfMemoryError as error:
        raise MeasurementError(
            f"{one.name}: out of memory: {first_line(error)}; take a smaller window, batch or dtype"
        ) from None
    finally:
        if not isinstance(one.model, nn.Module):
            gc.collect()  # the next model needs the memory


def _run(model: nn.Module, source: str, piece: _Piece, advance: Callable[[int], object]) -> _Scored:
    scorer = Scorer(model)
    if piece.largest_id >= scorer.vocabulary:
        raise CheckpointError(
            f"{source} knows {scorer.vocabulary} tokens, the text has {piece.largest_id}: "
            "that is another model's tokenizer"
        )
    nll: list[float] = []
    if piece.ids is not None:
        nll = score_windows(scorer, piece.ids, piece.windows, piece.batch, advance)
    requests = score_requests(scorer, piece.groups, advance)
    return _Scored(sum(p.numel() for p in model.parameters()), nll, requests)


def _notes(models: Sequence[Model], task: _Task) -> list[str]:
    notes = []
    if task.ids is not None and len(task.ids) <= task.window:
        notes.append(
            f"the text has {len(task.ids)} tokens, no more than one window of {task.window}: "
            "there is no interval without more windows"
        )
    for model in models:
        inventory = None if isinstance(model, nn.Module) else scan(model)
        if inventory is not None and inventory.container == "gguf":
            notes += [f"{model}: {note}" for note in inventory.notes]
    return notes
