"""Compare the perplexity of checkpoints on the same tokens of a text, window by window.

A window slides over the text by ``stride`` tokens; only predictions that no earlier window made
count. Windows are hard for all models alike, so differences are taken window by window, and the
interval is that of their mean.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from scipy import stats
from torch import nn

from gacprof.check.models import (
    CONFIDENCE,
    Checkpoint,
    common_dtype,
    loaded,
    short_names,
    torch_device,
    vocabulary,
)
from gacprof.checkpoint.scan import inventory_of
from gacprof.core.dtypes import dtype_name
from gacprof.core.errors import CheckpointError, ConfigError, require_within
from gacprof.core.points import MAX_DIM
from gacprof.core.results import Table
from gacprof.core.sizes import Interval


@dataclass(frozen=True)
class Perplexity:
    """A model's perplexity on the text: ``value`` is exp of the mean negative log-likelihood over
    all predictions, ``change`` that over the first model's, minus 1, with its 95 % interval (None
    for fewer than two windows). ``nats`` are the windows' sums."""

    model: str
    value: float
    change: Interval | None
    nats: tuple[float, ...]


@dataclass(frozen=True)
class Perplexities(Table):
    """The perplexities of models on ``tokens`` of a text; ``predictions`` are by window."""

    schema: ClassVar[str] = "gacprof.Perplexities/1"
    rows_in: ClassVar[str] = "models"

    text: str
    tokens: int
    window: int
    stride: int
    dtype: str
    device: str
    predictions: tuple[int, ...]
    models: tuple[Perplexity, ...]


Window = tuple[int, int, int]  # start, end (excluded), and where in it predictions begin to count


def perplexity(
    checkpoints: Sequence[Checkpoint],
    text: str | Path,
    *,
    window: int = 1024,
    stride: int | None = None,
    tokens: int | None = None,
    tokenizer: str | Path | None = None,
    device: str | None = None,
    dtype: str | None = None,
) -> Perplexities:
    """Compare how well models predict a text: their perplexity, lower is better.

    Parameters
    ----------
    checkpoints
        The reference first, then the others. One is in memory at a time.
    text
        A text file in UTF-8.
    window
        Tokens that a model sees at once.
    stride
        Tokens from one window to the next. By default half a window.
    tokens
        Read this many tokens of the text, from its start. By default all.
    tokenizer
        A folder with the tokenizer. By default the first checkpoint that has one.
    device
        cpu, cuda or cuda:1. By default the accelerator, where there is one.
    dtype
        The type to compute in. By default the widest that the checkpoints store.

    Raises
    ------
    CheckpointError
        No tokenizer; a text of fewer than two tokens; tokens that a model does not know.
    ConfigError
        Windows that leave tokens out.
    """
    require_within("window", window, MAX_DIM)
    where = torch_device(device)
    numbers = dtype or common_dtype(checkpoints)
    folder = tokenizer or tokenizer_folder(checkpoints)
    ids = encode(folder, Path(text).read_text(encoding="utf-8"))[:tokens]
    step = max(1, window // 2) if stride is None else stride
    if not 1 <= step <= window:
        raise ConfigError(f"windows of {window} tokens cannot slide by {step}: use 1 to {window}")
    windows = sliding_windows(len(ids), window, step)
    predictions = np.array([end - start - first for start, end, first in windows])
    models: list[Perplexity] = []
    for name, checkpoint in zip(short_names(checkpoints), checkpoints, strict=True):
        model = loaded(checkpoint, numbers, where)
        if vocabulary(model) <= int(ids.max()):
            raise CheckpointError(f"{name} does not know all tokens of {folder}'s tokenizer")
        nats = np.array([window_nats(model, ids.to(where), w) for w in windows])
        value = math.exp(nats.sum() / predictions.sum())
        change = None
        if models and len(windows) > 1:
            change = paired_change(nats - np.array(models[0].nats), predictions)
        models.append(Perplexity(name, value, change, tuple(nats.tolist())))
    return Perplexities(
        text=str(text),
        tokens=len(ids),
        window=window,
        stride=step,
        dtype=dtype_name(numbers),
        device=str(where),
        predictions=tuple(predictions.tolist()),
        models=tuple(models),
    )


def tokenizer_folder(checkpoints: Sequence[Checkpoint]) -> str:
    """Return the folder of the first checkpoint that has a tokenizer."""
    for inventory in map(inventory_of, checkpoints):
        if any(name.startswith("tokenizer") for name in inventory.side_files):
            return inventory.folder
    raise CheckpointError("no checkpoint has a tokenizer: name a folder with one (--tokenizer)")


def encode(folder: str | Path, text: str) -> torch.Tensor:
    """Return token ids [tokens] of a text, behind the tokenizer's first one if it sets it."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
    # A closing token behind the text would be one more prediction, which no text has
    ids = list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
    if list(tokenizer("")["input_ids"])[:1] == [tokenizer.bos_token_id]:
        ids.insert(0, tokenizer.bos_token_id)
    if len(ids) < 2:
        raise CheckpointError("a text of fewer than two tokens has no perplexity")
    return torch.tensor(ids)


def sliding_windows(tokens: int, window: int, stride: int) -> list[Window]:
    """Return the windows over a text; together they predict every token but the first, once."""
    last = tokens - 1
    windows = [(0, min(window, last), 0)]
    for start in range(stride, last - window + stride, stride):
        windows.append((start, min(start + window, last), window - stride))
    return windows


@torch.inference_mode()
def window_nats(model: nn.Module, ids: torch.Tensor, window: Window) -> float:
    """Return the negative log-likelihood of a window's predictions that count, in nats."""
    start, end, first = window
    logits = model(input_ids=ids[None, start:end], use_cache=False).logits[0, first:]
    targets = ids[start + first + 1 : end + 1]
    # In float32: a 16-bit sum over a window would lose its small terms
    return float(nn.functional.cross_entropy(logits.float(), targets, reduction="sum"))


def paired_change(more_nats: np.ndarray, predictions: np.ndarray) -> Interval:
    """Return the relative change of a perplexity, with Student's interval over the windows."""
    count = len(more_nats)
    mean = more_nats.sum() / predictions.sum()
    # A window counts by its predictions, of which the first has more and the last fewer
    residuals = more_nats - mean * predictions
    error = math.sqrt(count / (count - 1) * np.square(residuals).sum()) / predictions.sum()
    half = error * stats.t.ppf((1 + CONFIDENCE) / 2, count - 1)
    return Interval(*(float(math.expm1(x)) for x in (mean - half, mean, mean + half)))
