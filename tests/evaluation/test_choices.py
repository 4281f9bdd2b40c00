"""Multiple choice: the same picks as by brute force, and one clear line for a wrong file."""

from __future__ import annotations

import json

import pytest

from gacprof.core.errors import CheckpointError

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tiny_models import TEXT, tiny_model, tiny_tokenizer  # noqa: E402

from gacprof.evaluation.choices import (  # noqa: E402
    Question,
    groups_of,
    picked,
    read_questions,
    requests,
    score_requests,
)
from gacprof.evaluation.perplexity import Scorer  # noqa: E402


def _question(i: int) -> Question:
    """A stretch of the text, and four others of different lengths."""
    cuts = [(7 * i + 11 * k, 3 + (i + k) % 9) for k in range(4)]
    context = TEXT[i : i + 9 + i % 5].strip()
    return Question(context, tuple(TEXT[at : at + n].strip() for at, n in cuts), i % 4)


QUESTIONS = tuple(map(_question, range(8)))


@pytest.fixture(scope="module")
def model():
    return tiny_model()


def score_choices(scorer, questions, asked, most):
    flat = [request for choices in asked for request in choices]
    groups = [[flat[i] for i in group] for group in groups_of(asked, most)]
    return picked(questions, asked, most, score_requests(scorer, groups))


def _by_hand(model, tokenizer, context, choice):
    """log p(choice | context), one token at a time."""
    head = tokenizer(context)["input_ids"]
    whole = tokenizer(f"{context} {choice}")["input_ids"]
    total = 0.0
    for at in range(len(head), len(whole)):
        logits = model(torch.tensor([whole[:at]])).logits[0, -1].double()
        total += float(logits.log_softmax(-1)[whole[at]])
    return total


@pytest.mark.parametrize(("most", "begins"), [(1, False), (40, True), (10_000, False)])
def test_picks_are_those_of_brute_force(model, most, begins):
    tokenizer = tiny_tokenizer(begins=begins)
    asked = requests(tokenizer, QUESTIONS, 64)
    found = score_choices(Scorer(model), QUESTIONS, asked, most)
    for question, plain, normalised in zip(
        QUESTIONS, found.picked, found.picked_normalised, strict=True
    ):
        sums = [_by_hand(model, tokenizer, question.context, c) for c in question.choices]
        assert plain == max(range(4), key=lambda i: sums[i])
        assert normalised == max(range(4), key=lambda i: sums[i] / len(question.choices[i]))


def test_sum_and_normalised_differ_where_lengths_do(model):
    found = score_choices(Scorer(model), QUESTIONS, requests(tiny_tokenizer(), QUESTIONS, 64), 500)
    assert found.picked != found.picked_normalised


def test_white_space_between_the_two_is_the_continuations():
    tokenizer = tiny_tokenizer()
    spaced = [Question("Who? ", ("me", "you"), 0), Question("Who?", (" me", " you"), 0)]
    plain = Question("Who?", ("me", "you"), 0)
    assert requests(tokenizer, spaced, 64) == [requests(tokenizer, [plain], 64)[0]] * 2
    assert requests(tokenizer, [plain], 64)[0][0].scored == len(" me")


def test_a_long_context_loses_its_beginning_and_a_long_choice_is_refused():
    tokenizer = tiny_tokenizer()
    question = Question("a" * 50 + "b" * 6, ("cd", "ef"), 0)
    ((first, _),) = requests(tokenizer, [question], 8)
    assert list(first.ids) == tokenizer("b" * 6 + " cd")["input_ids"] and first.scored == 3
    with pytest.raises(CheckpointError, match="longer than the window of 8"):
        requests(tokenizer, [Question("a", ("c" * 9, "d"), 0)], 8)


def test_a_model_that_gives_nan_picks_nothing(model):
    broken = tiny_model()
    broken.lm_head.weight[0, 0] = float("nan")
    asked = requests(tiny_tokenizer(), QUESTIONS, 64)
    assert set(score_choices(Scorer(broken), QUESTIONS, asked, 500).picked) == {None}


def test_a_file_of_questions_is_read(tmp_path):
    path = tmp_path / "questions.jsonl"
    entries = [
        {"question": "One?", "choices": ["a", "b"], "answer": 1, "id": "x"},
        {"context": "Two", "choices": ["c", "d", "e"], "answer": 0},
    ]
    path.write_text("\n".join(map(json.dumps, entries)) + "\n\n")
    assert read_questions(path) == (
        Question("One?", ("a", "b"), 1), Question("Two", ("c", "d", "e"), 0)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("", "is empty"),
        ("nonsense", "line 1: not valid JSON"),
        ("[1]", "line 1: not a JSON object"),
        ('{"choices": ["a", "b"], "answer": 0}', "either 'question' or 'context'"),
        ('{"question": "q", "context": "q", "choices": ["a", "b"], "answer": 0}', "either"),
        ('{"question": "q", "options": ["a", "b"], "answer": 0}', "has no 'choices' .it has ques"),
        ('{"question": "q", "choices": ["a", "b"], "gold": 0}', "has no 'answer'"),
        ('{"question": " ", "choices": ["a", "b"], "answer": 0}', "not a text, or empty"),
        ('{"question": "q", "choices": ["a"], "answer": 0}', "two or more"),
        ('{"question": "q", "choices": ["a", ""], "answer": 0}', "two or more"),
        ('{"question": "q", "choices": "ab", "answer": 0}', "two or more"),
        ('{"question": "q", "choices": ["a", "b"], "answer": 2}', "not an index .* 0 to 1"),
        ('{"question": "q", "choices": ["a", "b"], "answer": "B"}', "not an index"),
        ('{"question": "q", "choices": ["a", "b"], "answer": true}', "not an index"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, line, told):
    path = tmp_path / "questions.jsonl"
    path.write_text(line)
    with pytest.raises(CheckpointError, match=told.replace("* 0", "*0")):
        read_questions(path)
