"""Multiple choice: which of several continuations a model finds most likely.

Scored as lm-evaluation-harness does: a continuation's log-likelihood is the sum over its tokens,
and the normalised one is that over its length in characters, so that a long continuation is not
put at a disadvantage. Both accuracies are given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gacprof.checkpoint.folder import parse_json
from gacprof.core.errors import CheckpointError
from gacprof.evaluation.perplexity import Scorer, padded, read_text, token_ids


@dataclass(frozen=True)
class Question:
    """``answer`` is the index of the right choice."""

    context: str
    choices: tuple[str, ...]
    answer: int


@dataclass(frozen=True)
class Request:
    """One continuation of one question: the tokens that are read, of which the last ``scored``
    are the continuation's."""

    ids: tuple[int, ...]
    scored: int


def read_questions(path: str | Path) -> tuple[Question, ...]:
    """One JSON object a line: ``question`` or ``context``, ``choices``, and ``answer``, the index
    of the right one. Other keys are left alone. Raises :class:`CheckpointError`."""
    lines = read_text(path).splitlines()
    numbered = [(f"{path}, line {n}", line) for n, line in enumerate(lines, 1) if line.strip()]
    return tuple(_question(parse_json(line.encode(), where), where) for where, line in numbered)


def _question(entry: dict[str, Any], where: str) -> Question:
    contexts = [entry[key] for key in ("question", "context") if key in entry]
    if len(contexts) != 1:
        raise CheckpointError(f"{where}: give either 'question' or 'context'")
    missing = [key for key in ("choices", "answer") if key not in entry]
    if missing:
        raise CheckpointError(f"{where}: has no '{missing[0]}' (it has {', '.join(entry)})")
    context, choices, answer = contexts[0], entry["choices"], entry["answer"]
    if not isinstance(context, str) or not context.strip():
        raise CheckpointError(f"{where}: the question is not a text, or empty")
    texts = isinstance(choices, list) and all(isinstance(c, str) and c.strip() for c in choices)
    if not texts or len(choices) < 2:
        raise CheckpointError(f"{where}: 'choices' are not two or more texts")
    if type(answer) is not int or not 0 <= answer < len(choices):
        raise CheckpointError(
            f"{where}: 'answer' is {str(answer)[:40]!r}, not an index of the choices "
            f"(0 to {len(choices) - 1})"
        )
    return Question(context, tuple(choices), answer)


def requests(tokenizer: Any, questions: Sequence[Question], window: int) -> list[list[Request]]:
    """By question, one request a choice. A context that is too long for ``window`` tokens loses
    its beginning. Raises :class:`CheckpointError` where a choice alone is too long."""
    return [[_request(tokenizer, q.context, c, window) for c in q.choices] for q in questions]


def _request(tokenizer: Any, context: str, choice: str, window: int) -> Request:
    """White space between the two belongs to the continuation, as tokenizers have it."""
    stem = context.rstrip()
    gap = context[len(stem) :] or ("" if choice[0].isspace() else " ")
    whole = token_ids(tokenizer, stem + gap + choice)
    if len(whole) < 2:
        raise CheckpointError(f"question and choice are fewer than two tokens: {context[:60]!r}")
    scored = min(max(1, len(whole) - len(token_ids(tokenizer, stem))), len(whole) - 1)
    if scored > window:
        raise CheckpointError(
            f"a choice of {scored} tokens is longer than the window of {window}: {choice[:60]!r}"
        )
    return Request(tuple(whole[-window - 1 :]), scored)


@dataclass(frozen=True)
class ChoiceScore:
    """By question: the choice that is picked by the sum, and by the sum over the length. None
    where a likelihood is not finite."""

    picked: tuple[int | None, ...]
    picked_normalised: tuple[int | None, ...]


def score_requests(
    scorer: Scorer,
    groups: Sequence[Sequence[Request]],
    progress: Callable[[int], object] = lambda requests: None,
) -> list[float]:
    """The log-likelihood of each request's continuation, a forward pass a group. ``progress`` is
    called with the number of requests that were scored."""
    found: list[float] = []
    for group in groups:
        found += _sums(scorer, group).tolist()
        progress(len(group))
    return found


def picked(
    questions: Sequence[Question],
    asked: Sequence[Sequence[Request]],
    most_tokens: int,
    scored: Sequence[float],
) -> ChoiceScore:
    """The choices by the log-likelihoods of the requests in the order of :func:`groups_of`."""
    sums = torch.zeros(len(scored), dtype=torch.float64)
    order = [i for group in groups_of(asked, most_tokens) for i in group]
    sums[order] = torch.tensor(scored, dtype=torch.float64)
    by_sum: list[int | None] = []
    normalised: list[int | None] = []
    for question, own in zip(questions, sums.split([len(c) for c in asked]), strict=True):
        lengths = torch.tensor([float(len(choice)) for choice in question.choices])
        finite = bool(own.isfinite().all())
        by_sum.append(int(own.argmax()) if finite else None)
        normalised.append(int((own / lengths).argmax()) if finite else None)
    return ChoiceScore(tuple(by_sum), tuple(normalised))


def _sums(scorer: Scorer, group: Sequence[Request]) -> torch.Tensor:
    """The log-likelihood of each request's continuation."""
    rows = [(torch.tensor(request.ids), len(request.ids) - 1 - request.scored) for request in group]
    inputs, targets, wanted = padded(rows)
    found = scorer(inputs, targets, wanted).split([request.scored for request in group])
    return torch.stack([part.sum() for part in found])


def groups_of(asked: Sequence[Sequence[Request]], most_tokens: int) -> Iterator[list[int]]:
    """The numbers of requests of similar length, so that little is padded; the longest first, so
    that memory runs out at once or never."""
    flat = [request for choices in asked for request in choices]
    order = sorted(range(len(flat)), key=lambda i: -len(flat[i].ids))
    first = 0
    while first < len(order):
        rows = max(1, most_tokens // max(1, len(flat[order[first]].ids) - 1))
        yield order[first : first + rows]
        first += rows
