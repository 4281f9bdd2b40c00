"""What an evaluation found: perplexity and accuracy of several models, compared with the first.

All models saw the same tokens in the same windows, so every model but the first is compared with
the first window by window (:mod:`.comparison`), and "no worse" is a measured statement: the
interval says how much worse it could be at most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gacprof.core.files import Record
from gacprof.core.fit import Floats
from gacprof.evaluation.choices import ChoiceScore, Question
from gacprof.evaluation.comparison import LEVEL, Change, accuracy_change, perplexity_change
from gacprof.evaluation.perplexity import Perplexity, TextScore


@dataclass(frozen=True)
class Accuracy:
    """Shares of ``questions`` that are answered right: by the sum of a choice's log-likelihoods,
    and by that sum over the choice's length in characters. None where one is not finite."""

    value: float | None
    normalised: float | None
    questions: int


@dataclass(frozen=True)
class ModelQuality:
    """One model. ``nll`` are nats by window, None where one is not finite; ``right`` and
    ``right_normalised`` say of each question whether it is answered right. The changes are
    against the first model; None for itself, and where there is too little to tell."""

    model: str
    source: str
    parameters: int = 0
    perplexity: Perplexity | None = None
    nll: tuple[float | None, ...] = ()
    accuracy: Accuracy | None = None
    right: tuple[bool, ...] = ()
    right_normalised: tuple[bool, ...] = ()
    perplexity_change: Change | None = None
    accuracy_change: Change | None = None
    accuracy_normalised_change: Change | None = None

    @property
    def finite(self) -> bool:
        """Whether every number that was asked for is one."""
        broken = self.perplexity is not None and self.perplexity.value is None
        return not broken and not (self.accuracy is not None and self.accuracy.value is None)


@dataclass(frozen=True)
class Quality(Record):
    """What :func:`gacprof.evaluate` found, the reference first.

    ``tokens`` is the length of the text, of which ``tokens`` − 1 are predicted, each once;
    ``window_tokens`` are the predictions of each window. ``level`` is that of one interval: all
    intervals of one column hold together with 95 %.
    """

    models: tuple[ModelQuality, ...]
    dtype: str
    device: str
    window: int
    stride: int
    text: str | None = None
    tokens: int = 0
    window_tokens: tuple[int, ...] = ()
    choices: str | None = None
    questions: int = 0
    chance: float | None = None
    level: float = LEVEL
    notes: tuple[str, ...] = ()

    @property
    def finite(self) -> bool:
        return all(model.finite for model in self.models)


def with_text(model: ModelQuality, score: TextScore) -> ModelQuality:
    """The model with what it scored on the text."""
    nll = tuple(value if math.isfinite(value) else None for value in score.nll)
    return replace(model, perplexity=score.perplexity, nll=nll)


def with_choices(
    model: ModelQuality, score: ChoiceScore, questions: Sequence[Question]
) -> ModelQuality:
    """The model with what it answered."""
    right, normalised = (
        tuple(choice == question.answer for choice, question in zip(picked, questions, strict=True))
        for picked in (score.picked, score.picked_normalised)
    )
    finite = None not in score.picked
    shares = [float(np.mean(each)) if finite else None for each in (right, normalised)]
    accuracy = Accuracy(shares[0], shares[1], len(questions))
    return replace(model, accuracy=accuracy, right=right, right_normalised=normalised)


def compared(
    models: Sequence[ModelQuality], window_tokens: Sequence[int], level: float
) -> tuple[ModelQuality, ...]:
    """The models, every one but the first with what it differs by from the first."""
    first, *others = models
    return (first, *(_against(first, one, window_tokens, level) for one in others))


def _against(
    first: ModelQuality, one: ModelQuality, window_tokens: Sequence[int], level: float
) -> ModelQuality:
    if one.nll:
        nll, reference, tokens = map(_floats, (one.nll, first.nll, window_tokens))
        one = replace(one, perplexity_change=perplexity_change(nll, reference, tokens, level))
    if _answered(one) and _answered(first):
        one = replace(
            one,
            accuracy_change=accuracy_change(_floats(one.right), _floats(first.right), level),
            accuracy_normalised_change=accuracy_change(
                _floats(one.right_normalised), _floats(first.right_normalised), level
            ),
        )
    return one


def _answered(model: ModelQuality) -> bool:
    return model.accuracy is not None and model.accuracy.value is not None


def _floats(values: Sequence[Any]) -> Floats:
    """None, which stands for what is not finite, becomes NaN."""
    return np.array(values, dtype=np.float64)


def chance(questions: Sequence[Question]) -> float | None:
    """The accuracy of picking at random."""
    return float(np.mean([1 / len(q.choices) for q in questions])) if questions else None
