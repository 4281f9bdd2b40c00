"""How good? The perplexity of several models on the same tokens, compared window by window.

One model is in memory after the other. The text is split into token ids and windows once, before
the first model is loaded, so that a wrong file costs no time. All models see the same windows, so
every model but the first is compared with the first by window (:mod:`.comparison`), and "no worse"
is a measured statement: the interval says how much worse it could be at most.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from gacprof.checkpoint import scan
from gacprof.checkpoint.layouts.declared import config_of_part
from gacprof.checkpoint.load import dtype_of
from gacprof.core.errors import CheckpointError
from gacprof.core.files import Record
from gacprof.core.formatting import Framed
from gacprof.evaluation.comparison import FAMILYWISE_LEVEL, Change, perplexity_change
from gacprof.evaluation.models import (
    Model,
    common_dtype,
    device_of,
    distinct_names,
    name_of,
    ready,
    refuse_other_than_models,
    running,
    text_config,
)
from gacprof.evaluation.perplexity import (
    Perplexity,
    Scorer,
    Window,
    common_tokenizer,
    encode,
    perplexity_of,
    read_text,
    score_windows,
    windows,
)
from gacprof.evaluation.request import EvaluateRequest

WINDOW = 1024
"""Tokens that a model sees at once, unless it has fewer positions."""


@dataclass(frozen=True)
class ModelQuality:
    """One model. ``nll`` are nats by window, None where one is not finite. ``perplexity_change`` is
    against the first model; None for itself, and where there is too little to tell."""

    model: str
    source: str
    parameters: int
    perplexity: Perplexity
    nll: tuple[float | None, ...]
    perplexity_change: Change | None = None

    @property
    def finite(self) -> bool:
        """Whether the perplexity is a number."""
        return self.perplexity.value is not None


@dataclass(frozen=True)
class Quality(Framed, Record):
    """What :func:`gacprof.evaluate` found, the reference first.

    ``tokens`` is the length of the text, of which ``tokens`` − 1 are predicted, each once;
    ``window_tokens`` are the predictions of each window. ``level`` is that of one interval: all
    intervals hold together with 95 %.
    """

    models: tuple[ModelQuality, ...]
    dtype: str
    device: str
    window: int
    stride: int
    text: str
    tokens: int
    window_tokens: tuple[int, ...]
    level: float = FAMILYWISE_LEVEL
    notes: tuple[str, ...] = ()

    @property
    def finite(self) -> bool:
        return all(model.finite for model in self.models)

    def frame_rows(self) -> Iterator[dict[str, Any]]:
        for one in self.models:
            change = one.perplexity_change
            yield {
                "model": one.model, "parameters": one.parameters,
                "perplexity": one.perplexity.value,
                "change": change and change.value, "change_low": change and change.low,
                "change_high": change and change.high, "finding": change and change.finding,
            }  # fmt: skip

    def frame_title(self) -> str:
        return f"perplexity of {self.text}, {self.tokens:,} tokens, {self.dtype} on {self.device}"


def evaluate_models(request: EvaluateRequest) -> Quality:
    """:func:`gacprof.evaluate`."""
    models, dtype, text = request.models, request.dtype, request.text
    if text is None:
        raise CheckpointError("give a text (text=, --text), or run tasks (run_tasks(), --tasks)")
    given = [models] if isinstance(models, str | Path | nn.Module) else list(models)
    if not given:
        raise CheckpointError("give a model, and a text (--text)")
    refuse_other_than_models(given)
    where = device_of(request.device)
    numbers = dtype_of(dtype) if dtype is not None else common_dtype(given)
    size, step = _window(given, request)
    ids = _token_ids(given, text, request.tokenizer, request.limit_tokens)
    asked = _Text(request.batch, ids, windows(len(ids), size, step))
    counts, found = [w.predictions for w in asked.windows], list[ModelQuality]()
    for model, name in zip(given, distinct_names([name_of(m) for m in given]), strict=True):

        def advance(more: int, name: str = name, done: int = len(found) * sum(counts)) -> None:
            if request.progress:
                request.progress(done + more, len(given) * sum(counts), name)

        found.append(_scored(model, name, numbers, where, asked, advance))
    level = FAMILYWISE_LEVEL / max(1, len(given) - 1)
    return Quality(
        models=_compared(found, counts, level),
        dtype=str(numbers).removeprefix("torch."),
        device=str(where),
        window=size,
        stride=step,
        text=str(text),
        tokens=len(ids),
        window_tokens=tuple(counts),
        level=level,
        notes=tuple(_notes(given, len(ids), size)),
    )


def _window(models: Sequence[Model], request: EvaluateRequest) -> tuple[int, int]:
    """Window and stride, as asked for or by default. Raises :class:`CheckpointError`."""
    held = {name_of(model): positions_of(model) for model in models}
    least = min((n for n in held.values() if n), default=None)
    size = request.window or min(WINDOW, least or WINDOW)
    step = request.stride or max(1, size // 2)
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


def _token_ids(
    models: Sequence[Model], text: str | Path, tokenizer: str | Path | None, limit: int | None
) -> torch.Tensor:
    if limit is not None and limit < 2:
        raise CheckpointError("a limit of fewer than two tokens leaves nothing to predict")
    content = read_text(text)
    folders = [model for model in models if not isinstance(model, nn.Module)]
    return encode(common_tokenizer(folders, tokenizer, content), content, limit)


@dataclass(frozen=True)
class _Text:
    """Token ids [tokens], and windows of them, ``batch`` at once: what every model is asked."""

    batch: int
    ids: torch.Tensor
    windows: Sequence[Window]


def _scored(
    model: Model,
    name: str,
    dtype: torch.dtype,
    device: torch.device,
    asked: _Text,
    advance: Callable[[int], None],
) -> ModelQuality:
    """The model's nats by window. One that was loaded for it is let go."""
    with running(name, "a smaller window, batch or dtype"):
        loaded = ready(model, dtype, device)
        scorer, largest = Scorer(loaded), int(asked.ids.max())
        if largest >= scorer.vocabulary:
            raise CheckpointError(
                f"{name_of(model)} knows {scorer.vocabulary} tokens, the text has {largest}: that "
                "is another model's tokenizer"
            )
        nll = score_windows(scorer, asked.ids, asked.windows, asked.batch, advance)
    parameters = sum(p.numel() for p in loaded.parameters())
    if not isinstance(model, nn.Module):
        del loaded, scorer
        gc.collect()  # the next model needs the memory
    perplexity = perplexity_of(nll, sum(w.predictions for w in asked.windows))
    finite = tuple(value if math.isfinite(value) else None for value in nll)
    return ModelQuality(name, name_of(model), parameters, perplexity, finite)


def _compared(
    models: Sequence[ModelQuality], window_tokens: Sequence[int], level: float
) -> tuple[ModelQuality, ...]:
    """The models, every one but the first with what it differs by from the first."""
    first, *others = models
    # None, which stands for what is not finite, becomes NaN
    tokens, reference = (np.array(x, dtype=np.float64) for x in (window_tokens, first.nll))
    return first, *(
        replace(
            one,
            perplexity_change=perplexity_change(
                np.array(one.nll, dtype=np.float64), reference, tokens, level
            ),
        )
        for one in others
    )


def _notes(models: Sequence[Model], tokens: int, window: int) -> list[str]:
    notes = []
    if tokens <= window:
        notes.append(
            f"the text has {tokens} tokens, no more than one window of {window}: "
            "there is no interval without more windows"
        )
    for model in models:
        inventory = None if isinstance(model, nn.Module) else scan(model)
        if inventory is not None and inventory.container == "gguf":
            notes += [f"{model}: {note}" for note in inventory.notes]
    return notes
