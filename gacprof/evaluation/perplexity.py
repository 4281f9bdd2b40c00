"""Perplexity of a text: strided windows, every token but the first predicted exactly once.

A model sees a limited context. A window of N tokens slides over the text by M ≤ N tokens, and of
each window only the predictions count that no earlier window made. So a prediction has at least
N − M + 1 tokens of context, except in the first window, and M = N is the cheapest and M = 1 the
most generous choice. The first token of the text has no context at all and is not predicted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from gacprof.evaluation.likelihood import Scorer

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


@dataclass(frozen=True)
class TextScore:
    """Negative log-likelihood (nats) and number of predictions of each window."""

    nll: tuple[float, ...]
    tokens: tuple[int, ...]

    @property
    def perplexity(self) -> Perplexity:
        mean = math.fsum(self.nll) / sum(self.tokens)
        finite = math.isfinite(mean) and mean < LARGEST_EXPONENT
        return Perplexity(math.exp(mean) if finite else None, sum(self.tokens))


def score_windows(
    scorer: Scorer,
    ids: torch.Tensor,
    plan: Sequence[Window],
    batch: int = 1,
    progress: Callable[[int], object] = lambda predictions: None,
) -> list[float]:
    """The negative log-likelihood of each window of the text of token ids [tokens], ``batch``
    windows at once. ``progress`` is called with the number of predictions that were made."""
    sums: list[float] = []
    for first in range(0, len(plan), batch):
        group = plan[first : first + batch]
        longest = max(w.end - w.start for w in group)
        inputs = torch.zeros(len(group), longest, dtype=torch.long)
        targets, wanted = torch.zeros_like(inputs), torch.zeros_like(inputs, dtype=torch.bool)
        for row, w in enumerate(group):
            length = w.end - w.start
            inputs[row, :length] = ids[w.start : w.end]
            targets[row, :length] = ids[w.start + 1 : w.end + 1]
            wanted[row, w.first : length] = True
        counts = [w.predictions for w in group]
        sums += [-float(part.sum()) for part in scorer(inputs, targets, wanted).split(counts)]
        progress(sum(counts))
    return sums


def score_text(
    scorer: Scorer,
    ids: torch.Tensor,
    window: int,
    stride: int,
    batch: int = 1,
    progress: Callable[[int], object] = lambda predictions: None,
) -> TextScore:
    """:func:`score_windows` of the whole text."""
    plan = windows(len(ids), window, stride)
    nll = score_windows(scorer, ids, plan, batch, progress)
    return TextScore(tuple(nll), tuple(w.predictions for w in plan))
