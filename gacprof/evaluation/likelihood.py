"""How likely a model finds given tokens, with a bounded number of logits in memory.

Logits are the largest thing that evaluating a model makes: a window of 2048 tokens over a
vocabulary of 128,000 takes 1 GB in float32, and its softmax as much again. So the layers run once
over the whole window, and the head runs over a few positions at a time, in the model's dtype; the
logarithm of the softmax is taken in float32 and sums are kept in float64.
"""

from __future__ import annotations

import torch
from torch import nn

from gacprof.evaluation.models import vocabulary

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

    @property
    def in_chunks(self) -> bool:
        """Whether the head runs by itself."""
        return self._head is not None

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
