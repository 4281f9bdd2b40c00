"""Calibration text as windows of tokens: what a method may know of the inputs.

Windows are whole and of one length, cut one after the other from the text's beginning; a rest is
left out. So every window counts alike, and the same text gives the same windows everywhere.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gacprof.checkpoint.inventory import Inventory
from gacprof.core.errors import CompressionError, short, why_unreadable
from gacprof.core.files import open_regular

if TYPE_CHECKING:
    import torch

WINDOWS, LENGTH = 32, 512
"""16,384 tokens: more than features in a layer of a small model, minutes on a CPU."""

CHARACTERS_PER_TOKEN = 16
"""More of a text is not tokenised than windows of this many characters a token could take."""


@dataclass(frozen=True)
class Calibration:
    """``ids`` [windows, tokens]; ``source`` says where they are from, ``ended`` whether that has
    no more windows."""

    ids: torch.Tensor
    source: str
    ended: bool = True

    @property
    def digest(self) -> str:
        return sha256(self.ids.numpy().tobytes()).hexdigest()[:16]

    def as_dict(self) -> dict[str, Any]:
        windows, length = self.ids.shape
        return {
            "source": self.source,
            "windows": windows,
            "tokens_per_window": length,
            "tokens": windows * length,
            "digest": self.digest,
        }


def calibration_of(
    text: str | Path | torch.Tensor,
    inventory: Inventory,
    *,
    windows: int = WINDOWS,
    length: int = LENGTH,
    tokenizer: str | Path | None = None,
) -> Calibration:
    """The first ``windows`` of a text file, or token ids [windows, tokens] as given.

    The tokenizer is the model's own unless another folder is named. Raises
    :class:`CompressionError` for a text of less than one window, or ids that the model does not
    know.
    """
    import torch

    source, ended = "token ids", True
    if isinstance(text, str | Path):
        found = _tokens(Path(text), inventory, windows * length, tokenizer)
        source = Path(text).name
        count = min(windows, len(found) // length)
        ended = count < windows
        if not count:
            raise CompressionError(
                f"the calibration text {text} has {len(found)} tokens, fewer than one window of "
                f"{length}: give a longer text, or shorter windows"
            )
        ids = torch.tensor(found[: count * length]).reshape(count, length)
    else:
        try:
            ids = torch.as_tensor(text).cpu()
            fits = (
                not (ids.is_floating_point() or ids.dtype == torch.bool)
                and ids.dim() == 2
                and ids.shape[1] > 1
                and len(ids) > 0
            )
        except (TypeError, ValueError, RuntimeError):  # as torch calls what is no array
            fits = False
        if not fits:
            has_shape = hasattr(text, "shape")
            given = f"{text.dtype} {list(text.shape)}" if has_shape else short(repr(text))
            raise CompressionError(
                f"calib is {given}: it must be a text file or token ids [windows, tokens], "
                "whole numbers, two tokens at least in a window"
            )
        ids = ids.long()
    known = inventory.config.get("vocab_size")
    strange = ids[(ids < 0) | (ids >= (known if isinstance(known, int) else ids.max() + 1))]
    if len(strange):
        raise CompressionError(
            f"the calibration text has the token {int(strange[0])}, the model knows {known}"
        )
    return Calibration(ids.contiguous(), source, ended)


def _tokens(
    path: Path, inventory: Inventory, needed: int, tokenizer: str | Path | None
) -> list[int]:
    try:
        with io.TextIOWrapper(open_regular(path), encoding="utf-8") as file:
            content = file.read(needed * CHARACTERS_PER_TOKEN)
    except (OSError, UnicodeDecodeError) as error:
        raise CompressionError(
            f"cannot read the calibration text {path}: {why_unreadable(error)}"
        ) from None
    if not content.strip():
        raise CompressionError(f"the calibration text {path} is empty")
    from gacprof.evaluation.perplexity import common_tokenizer, token_ids

    return token_ids(common_tokenizer([inventory.folder], tokenizer, content), content)
