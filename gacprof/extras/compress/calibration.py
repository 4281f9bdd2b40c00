"""Calibration text as windows of tokens: the inputs that a method may see.

Windows are whole and of equal length, cut from the text's beginning; a rest is left out. So every
window counts the same, and a text gives the same windows everywhere.
"""

from __future__ import annotations

from pathlib import Path

import torch

from gacprof.checkpoint.inventory import Inventory
from gacprof.core.errors import ConfigError

WINDOWS = 32
LENGTH = 512
"""16,384 tokens: more than a layer of a small model has features, minutes on a CPU."""

CHARACTERS_PER_TOKEN = 16
"""More of a text is not read than tokens of this many characters would need."""


def calibration_ids(
    text: str | Path | torch.Tensor,
    inventory: Inventory,
    windows: int = WINDOWS,
    length: int = LENGTH,
) -> torch.Tensor:
    """Return the first windows of a text as token ids [windows, tokens].

    ``text`` is a file in UTF-8, split by the checkpoint's tokenizer, or ids that are returned as
    they are. Raises :class:`ConfigError` for a text that is shorter than a window.
    """
    if isinstance(text, torch.Tensor):
        return text.long().cpu()
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(inventory.folder)
    with Path(text).open(encoding="utf-8") as file:
        content = file.read(windows * length * CHARACTERS_PER_TOKEN)
    ids = torch.tensor(tokenizer(content, verbose=False)["input_ids"])
    if len(ids) < length:
        raise ConfigError(
            f"the text {text} has {len(ids)} tokens, fewer than a window of {length}: give a "
            "longer text or a shorter length"
        )
    count = min(windows, len(ids) // length)
    return ids[: count * length].reshape(count, length)
