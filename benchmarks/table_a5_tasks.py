"""Two tasks for lm-evaluation-harness, made of a text: no hub is needed, and no example is known.

``last_word``, in the form of LAMBADA: a paragraph without its last word, which is right where it is
the model's likeliest continuation. ``next_sentence``, in the form of HellaSwag: which of four
sentences follows; the other three are of other places in the text. Their numbers compare models on
this text; they are not the published tasks' numbers.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable
from pathlib import Path

from gacprof.core.files import write_text

TASKS = ("last_word", "next_sentence")
EXAMPLES = 400
WORDS = range(20, 61)
"""Of a context: enough to go by, and short on a CPU."""

# The harness puts no space before a target of its own accord.
_COMMON = "dataset_path: json\ndataset_kwargs: {{data_files: {{test: {file}}}}}\ntest_split: test\n"
_TASK = {
    "last_word": _COMMON + "task: last_word\noutput_type: loglikelihood\ndoc_to_text: context\n"
    "doc_to_target: \"{{{{' ' + target}}}}\"\nmetric_list: [{{metric: acc}}]\n",
    "next_sentence": _COMMON + "task: next_sentence\noutput_type: multiple_choice\n"
    "doc_to_text: context\ndoc_to_choice: choices\ndoc_to_target: answer\n"
    "metric_list: [{{metric: acc_norm}}]\n",
}


def write_tasks(text: Path, folder: Path) -> None:
    """The tasks' definitions and their examples, the same of the same text."""
    paragraphs = [
        paragraph
        for paragraph in text.read_text(encoding="utf-8").splitlines()
        if len(paragraph.split()) in WORDS and re.search(r"\w\.$", paragraph)
    ]
    random.Random(0).shuffle(paragraphs)
    folder.mkdir(parents=True, exist_ok=True)
    for task, examples in {
        "last_word": _last_words(paragraphs),
        "next_sentence": _next_sentences(paragraphs),
    }.items():
        file = folder.resolve() / f"{task}.jsonl"
        kept = [json.dumps(example) for example, _ in zip(examples, range(EXAMPLES), strict=False)]
        write_text(file, "\n".join(kept) + "\n")
        write_text(folder / f"{task}.yaml", _TASK[task].format(file=file))


def _last_words(paragraphs: list[str]) -> Iterable[dict[str, object]]:
    for paragraph in paragraphs:
        context, _, target = paragraph.removesuffix(".").rpartition(" ")
        if target.isalpha():
            yield {"context": context, "target": target}


def _next_sentences(paragraphs: list[str]) -> Iterable[dict[str, object]]:
    split = [re.split(r"(?<=\w\.) (?=[A-Z])", paragraph) for paragraph in paragraphs]
    pairs = [(" ".join(parts[:-1]), parts[-1]) for parts in split if len(parts) > 1]
    draw = random.Random(1)
    for i, (context, follows) in enumerate(pairs):
        others = draw.sample([last for j, (_, last) in enumerate(pairs) if j != i], 3)
        answer = draw.randrange(4)
        choices = [*others[:answer], follows, *others[answer:]]
        yield {"context": context, "choices": choices, "answer": answer}
