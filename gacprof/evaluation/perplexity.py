"""Perplexity on a text file: does the model still read as well?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gacprof.checkpoint.skeleton import require_transformers
from gacprof.core.errors import CheckpointError

WINDOW = 512
"""Tokens a model sees at once; windows do not overlap, so the first tokens of each have little
context. The number serves to compare two models, not to compare with published ones."""

LARGEST = 16_384
"""Tokens read of a long text."""


@dataclass(frozen=True)
class Perplexity:
    """``value`` = exp of the mean negative log-likelihood (nats) over ``tokens`` predictions."""

    value: float | None
    tokens: int


def encode(text: str | Path, checkpoints: Sequence[str | Path]) -> torch.Tensor:
    """The token ids of a text file, by the first tokenizer found beside the checkpoints."""
    try:
        content = Path(text).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"cannot read the text {text}: {error}") from None
    for checkpoint in checkpoints:
        tokenizer = _tokenizer(Path(checkpoint))
        if tokenizer is not None:
            ids = torch.tensor(tokenizer(content)["input_ids"][:LARGEST])
            if ids.numel() < 2:
                raise CheckpointError(f"{text} has fewer than two tokens: no perplexity")
            return ids
    raise CheckpointError(
        f"perplexity needs a tokenizer, and there is none in {', '.join(map(str, checkpoints))}: "
        "name the original model's folder (--tokenizer)"
    )


def _tokenizer(path: Path) -> Any:
    folder = path if path.is_dir() else path.parent
    if not any(folder.glob("tokenizer*")):
        return None
    transformers = require_transformers()
    try:
        return transformers.AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # a tokenizer file can be wrong in any way
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(f"{folder}: its tokenizer cannot be loaded: {reason}") from None


def perplexity(model: nn.Module, ids: torch.Tensor, device: torch.device) -> Perplexity:
    """Over consecutive windows of a text's token ids [tokens]."""
    total, count = 0.0, 0
    for start in range(0, len(ids) - 1, WINDOW):
        window = ids[start : start + WINDOW + 1].to(device)
        with torch.inference_mode():
            logits = model(input_ids=window[None, :-1], use_cache=False).logits[0].float()
        losses = nn.functional.cross_entropy(logits, window[1:], reduction="sum")
        total, count = total + float(losses), count + len(window) - 1
    value = math.exp(total / count) if total / count < 700 else math.inf
    return Perplexity(value if math.isfinite(value) else None, count)
