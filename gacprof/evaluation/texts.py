"""Texts as token ids: which tokenizer a checkpoint has, and what it makes of a text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from gacprof.checkpoint.tokenizer import tokenizer_beside
from gacprof.core.errors import CheckpointError

SAMPLE = 20_000
"""Characters of a text on which the tokenizers of several models have to agree."""


def read_text(path: str | Path) -> str:
    """A file in UTF-8 that holds more than white space. Raises :class:`CheckpointError`."""
    try:
        content = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"cannot read the text {path}: {error}") from None
    if not content.strip():
        raise CheckpointError(f"the text {path} is empty")
    return content


def common_tokenizer(
    checkpoints: Sequence[str | Path], named: str | Path | None, sample: str
) -> Any:
    """The tokenizer of the folder ``named``, else the one that the checkpoints share.

    A checkpoint without a tokenizer takes the others'. Raises :class:`CheckpointError` where none
    has one, or where two split ``sample`` otherwise: a perplexity is per token, so that those of
    different tokens cannot be compared.
    """
    if named is not None:
        found = tokenizer_beside(named)
        if found is None:
            raise CheckpointError(f"{named}: has no tokenizer")
        return found
    if not checkpoints:
        raise CheckpointError("a model in memory brings no tokenizer: name a folder that has one")
    tokenizers = [(path, tokenizer_beside(path)) for path in checkpoints]
    held = [(path, tokenizer) for path, tokenizer in tokenizers if tokenizer is not None]
    if not held:
        raise CheckpointError(
            f"a text needs a tokenizer, and there is none in {', '.join(map(str, checkpoints))}: "
            "name the original model's folder (--tokenizer)"
        )
    (first, tokenizer), *others = held
    expected = token_ids(tokenizer, sample[:SAMPLE])
    for path, other in others:
        if token_ids(other, sample[:SAMPLE]) != expected:
            raise CheckpointError(
                f"the tokenizers of {first} and {path} split the text otherwise: their numbers "
                "cannot be compared; evaluate them one by one, or name one tokenizer (--tokenizer)"
            )
    return tokenizer


def token_ids(tokenizer: Any, text: str) -> list[int]:
    """The ids of a text, behind the token that begins a text where the tokenizer sets one.

    A token that ends a text is never set: what follows is what a model is asked for.
    """
    ids: list[int] = list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
    begins = list(tokenizer("")["input_ids"])[:1]
    return [*begins, *ids] if begins == [tokenizer.bos_token_id] else ids


def encode(tokenizer: Any, text: str, limit: int | None = None) -> torch.Tensor:
    """Token ids [tokens], the first ``limit`` of them. Raises :class:`CheckpointError` for fewer
    than two: the first has no context, so that nothing would be predicted."""
    ids = torch.tensor(token_ids(tokenizer, text)[:limit])
    if ids.numel() < 2:
        raise CheckpointError("a text of fewer than two tokens has no perplexity")
    return ids
