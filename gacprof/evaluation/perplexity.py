"""Perplexity of a text: its token ids, how likely they are, strided windows.

Logits are the largest thing that evaluating a model makes. So the layers run once over the whole
window and the head over a few positions at a time, in the model's dtype; the logarithm of the
softmax is taken in float32 and sums are kept in float64.

A window of N tokens slides over the text by M ≤ N tokens, and of each window only the predictions
count that no earlier window made: a prediction has at least N − M + 1 tokens of context, except in
the first window. The first token of the text is not predicted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gacprof.checkpoint.load import tokenizer_of
from gacprof.core import files
from gacprof.core.errors import CheckpointError, first_line, why_unreadable
from gacprof.evaluation.models import vocabulary

SAMPLE = 20_000
"""Characters of a text on which the tokenizers of several models have to agree."""


def read_text(path: str | Path) -> str:
    """A file in UTF-8 that holds more than white space. Raises :class:`CheckpointError`."""
    try:
        content = files.read_text(Path(path))
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"cannot read the text {path}: {why_unreadable(error)}") from None
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
        found = tokenizer_of(named)
        if found is None:
            raise CheckpointError(f"{named}: has no tokenizer")
        return found
    if not checkpoints:
        raise CheckpointError("a model in memory brings no tokenizer: name a folder that has one")
    tokenizers = [(path, tokenizer_of(path)) for path in checkpoints]
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

    A token that ends a text is never set: what follows is what a model is asked for. Raises
    :class:`CheckpointError` for a tokenizer that fails.
    """
    try:
        ids: list[int] = list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
        begins = list(tokenizer("")["input_ids"])[:1]
    except Exception as error:  # its files are a checkpoint's, and can be wrong in any way
        raise CheckpointError(
            f"{tokenizer.name_or_path}: its tokenizer fails on the text: {first_line(error)}"
        ) from None
    return [*begins, *ids] if begins == [tokenizer.bos_token_id] else ids


def encode(tokenizer: Any, text: str, limit: int | None = None) -> torch.Tensor:
    """Token ids [tokens], the first ``limit`` of them. Raises :class:`CheckpointError` for fewer
    than two: the first has no context, so that nothing would be predicted."""
    ids = torch.tensor(token_ids(tokenizer, text)[:limit])
    if ids.numel() < 2:
        raise CheckpointError("a text of fewer than two tokens has no perplexity")
    return ids


CHUNK_BYTES = 64 << 20
"""Of float32 logits at a time."""

TRIAL = 4
"""Tokens on which the head is tried by itself."""


class Scorer:
    """The log-likelihoods of tokens under one model.

    The head can run by itself only where nothing is done to the logits after it (Gemma caps them,
    Cohere scales them). Whether that is so is tried, not looked up: on :data:`TRIAL` tokens the
    head's output has to be the model's own. Where it is not, the model makes all its logits.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.vocabulary = vocabulary([model])
        self._device = next(model.parameters()).device
        self._rows = max(1, CHUNK_BYTES // (4 * self.vocabulary))
        self._head = self._separable_head()

    @torch.inference_mode()
    def __call__(
        self, inputs: torch.Tensor, targets: torch.Tensor, wanted: torch.Tensor
    ) -> torch.Tensor:
        """log p(target | inputs up to its position), in nats, of the ``wanted`` positions.

        All three are [sequences, positions]; ``wanted`` is boolean. The result is float64 on the
        CPU, [number of wanted], row by row. Ids are below :attr:`vocabulary`.
        """
        wanted = wanted.to(self._device)
        states = self._states(inputs.to(self._device))[wanted]
        right = targets.to(self._device)[wanted]
        found = []
        for piece, target in zip(states.split(self._rows), right.split(self._rows), strict=True):
            logits = piece if self._head is None else self._head(piece)
            found.append(-nn.functional.cross_entropy(logits.float(), target, reduction="none"))
        return torch.cat(found).double().cpu()

    def _states(self, ids: torch.Tensor) -> torch.Tensor:
        """What the head reads [sequences, positions, hidden]; the logits where it is no part."""
        if self._head is None:
            logits: torch.Tensor = self.model(input_ids=ids, use_cache=False).logits
            return logits
        return _caught(self.model, self._head, ids)[0]

    @torch.inference_mode()
    def _separable_head(self) -> nn.Module | None:
        find = getattr(self.model, "get_output_embeddings", None)
        head = find() if callable(find) else None
        if not isinstance(head, nn.Module):
            return None
        ids = (torch.arange(TRIAL, device=self._device) % self.vocabulary)[None]
        caught = _caught(self.model, head, ids)
        if len(caught) != 1 or caught[0].shape[:2] != ids.shape:
            return None
        whole = self.model(input_ids=ids, use_cache=False).logits
        return head if torch.equal(head(caught[0]), whole) else None


def _caught(model: nn.Module, head: nn.Module, ids: torch.Tensor) -> list[torch.Tensor]:
    """What ``head`` is called with, one tensor a call; it computes the first position only."""
    caught: list[torch.Tensor] = []

    def catch(_: nn.Module, given: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        caught.append(given[0])
        return (given[0][:, :1], *given[1:])

    handle = head.register_forward_pre_hook(catch)
    try:
        model(input_ids=ids, use_cache=False)
    finally:
        handle.remove()
    return caught


LARGEST_EXPONENT = 700
"""exp of more is no float."""


@dataclass(frozen=True)
class Perplexity:
    """``value`` = exp of the mean negative log-likelihood (nats) over ``tokens`` predictions;
    None where a likelihood is not finite."""

    value: float | None
    tokens: int


@dataclass(frozen=True)
class Window:
    """The model reads tokens ``start`` to ``end`` (excluded) and predicts the ones after each.
    Predictions count from position ``first`` of the window on."""

    start: int
    end: int
    first: int

    @property
    def predictions(self) -> int:
        return self.end - self.start - self.first


def windows(tokens: int, window: int, stride: int) -> list[Window]:
    """The windows over a text of ``tokens`` tokens; their predictions add up to ``tokens`` − 1.

    Raises ``ValueError`` unless 1 ≤ ``stride`` ≤ ``window`` and there are two tokens.
    """
    if not 1 <= stride <= window or tokens < 2:
        raise ValueError(f"no windows of {window} by {stride} over {tokens} tokens")
    found: list[Window] = []
    predicted, last = 0, tokens - 1
    for start in range(0, last, stride):
        end = min(start + window, last)
        found.append(Window(start, end, predicted - start))
        predicted = end
        if end == last:
            break
    return found


def perplexity_of(nll: Sequence[float], tokens: int) -> Perplexity:
    """From the negative log-likelihoods (nats) of parts of a text of so many predictions."""
    mean = math.fsum(nll) / tokens
    finite = math.isfinite(mean) and mean < LARGEST_EXPONENT
    return Perplexity(math.exp(mean) if finite else None, tokens)


def padded(
    rows: Sequence[tuple[torch.Tensor, int]],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Inputs, targets and what is wanted of them for a :class:`Scorer`, a sequence of token ids a
    row: of each the predictions count from a position on."""
    shape = len(rows), max(len(ids) for ids, _ in rows) - 1
    inputs, targets = torch.zeros(2, *shape, dtype=torch.long)
    wanted = torch.zeros(shape, dtype=torch.bool)
    for row, (ids, first) in enumerate(rows):
        length = len(ids) - 1
        inputs[row, :length], targets[row, :length] = ids[:-1], ids[1:]
        wanted[row, first:length] = True
    return inputs, targets, wanted


def score_windows(
    scorer: Scorer,
    ids: torch.Tensor,
    plan: Sequence[Window],
    batch: int = 1,
    progress: Callable[[int], object] = lambda predictions: None,
) -> list[float]:
    """The negative log-likelihood of each window of the text of token ids [tokens], ``batch``
    windows at once. ``progress`` is called with the number of predictions so far."""
    sums: list[float] = []
    done = 0
    for first in range(0, len(plan), batch):
        group = plan[first : first + batch]
        inputs, targets, wanted = padded([(ids[w.start : w.end + 1], w.first) for w in group])
        counts = [w.predictions for w in group]
        sums += [-float(part.sum()) for part in scorer(inputs, targets, wanted).split(counts)]
        done += sum(counts)
        progress(done)
    return sums
