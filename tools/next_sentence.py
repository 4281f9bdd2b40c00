"""Multiple choice from any text: which of four sentences goes on?

    python tools/next_sentence.py TEXT OUT.jsonl [--questions 200] [--seed 0]

No public test is at hand without a hub, so one is made. TEXT is one that ``fetch_brown.py`` wrote:
documents with an empty line between them, a paragraph a line. A question shows two sentences of a
document and asks for the next; the wrong choices are sentences of three *other* documents, chosen
among those whose length in words is nearest the right one's, so that length tells nothing.

What it measures: whether a model follows a text. What it does not: knowledge or reasoning, as ARC
and HellaSwag do; its numbers stand beside one another only. Deterministic: same text, same
questions.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from pathlib import Path

from gacprof.core.files import write_text

SHOWN = 2
"""Sentences of context."""
CHOICES = 4
SHORTEST, LONGEST = 6, 30
"""Words of a sentence that is a choice."""
POOL = 20
"""A wrong choice is drawn from so many sentences of nearly the right length."""

Sentence = tuple[int, str]
"""Number of its document, and text."""


def documents(text: str) -> list[list[str]]:
    """The sentences of each document, split where a sentence's end is followed by a capital."""
    found = []
    for document in re.split(r"\n\s*\n", text.strip()):
        lines = [line.strip() for line in document.splitlines() if line.strip()]
        found.append([s for line in lines for s in re.split(r"(?<=[.?!])\s+(?=[A-Z\"])", line)])
    return found


def words(sentence: str) -> int:
    return len(sentence.split())


def questions(text: str, count: int, seed: int) -> list[dict[str, object]]:
    """``count`` questions, of each document at most as many as make the number; fewer where the
    text is short."""
    draw = random.Random(seed)
    pages = documents(text)
    pool = [(i, s) for i, page in enumerate(pages) for s in page if SHORTEST <= words(s) <= LONGEST]
    starts = [
        (i, at)
        for i, page in enumerate(pages)
        for at in range(SHOWN, len(page))
        if SHORTEST <= words(page[at]) <= LONGEST
    ]
    draw.shuffle(starts)
    asked = []
    for i, at in starts:
        if len(asked) == count:
            break
        right = pages[i][at]
        wrong = _wrong(right, i, pool, draw)
        if wrong is None:
            continue
        answer = draw.randrange(CHOICES)
        asked.append(
            {
                "context": " ".join(pages[i][at - SHOWN : at]),
                "choices": [*wrong[:answer], right, *wrong[answer:]],
                "answer": answer,
            }
        )
    return asked


def _wrong(right: str, page: int, pool: list[Sentence], draw: random.Random) -> list[str] | None:
    """Sentences of different other documents, of nearly the same length in words."""
    others = [one for one in pool if one[0] != page and one[1] != right]
    near = sorted(others, key=lambda one: (abs(words(one[1]) - words(right)), one))[:POOL]
    draw.shuffle(near)
    chosen: dict[int, str] = {}
    for number, sentence in near:
        chosen.setdefault(number, sentence)
    wrong = list(dict.fromkeys(chosen.values()))[: CHOICES - 1]
    return wrong if len(wrong) == CHOICES - 1 else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    found = questions(asked.text.read_text(encoding="utf-8"), asked.questions, asked.seed)
    if len(found) < asked.questions:
        sys.exit(f"next_sentence: {asked.text} gives {len(found)} questions only")
    write_text(asked.out, "".join(json.dumps(q, ensure_ascii=False) + "\n" for q in found))
    print(f"{asked.out}: {len(found)} questions of {CHOICES} choices")


if __name__ == "__main__":
    main()
