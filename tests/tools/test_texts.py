"""What the tools make of a corpus: text as in print, and questions whose length tells nothing."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from gacprof.evaluation.choices import read_questions

TOOLS = Path(__file__).parents[2] / "tools"


def _tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


fetch_brown, next_sentence = _tool("fetch_brown"), _tool("next_sentence")

TAGGED = """

\tThe/at jury/nn said/vbd ``/`` no/at evidence/nn ''/'' was/bedz found/vbn (/( at/in 1/2/cd )/) ./.


\tWas/bedz it/pps so/rb ?/. ?/.
It/pps was/bedz ,/, the/at Mayor's/np$ men/nns said/vbd --/-- twice/rb ./.
"""


def test_tagged_words_become_text_as_in_print():
    assert fetch_brown.plain(TAGGED) == (
        'The jury said "no evidence" was found (at 1/2).\n'
        "Was it so? It was, the Mayor's men said -- twice."
    )


def _corpus(pages: int = 12) -> str:
    """Documents whose sentences name them, of various lengths."""
    return "\n\n".join(
        "\n".join(
            f"In page {page} the sentence of number {i} has {' '.join(['words'] * (i % 4 + 1))}."
            for i in range(15)
        )
        for page in range(pages)
    )


def test_the_right_choice_goes_on_and_the_wrong_ones_come_from_other_documents():
    asked = next_sentence.questions(_corpus(), 60, 0)
    assert len(asked) == 60
    for question in asked:
        page = question["context"].split()[2]
        pages = [choice.split()[2] for choice in question["choices"]]
        right = question["answer"]
        assert pages[right] == page and pages.count(page) == 1 and len(set(pages)) == 4
        shown = [int(s.split("number ")[1].split()[0]) for s in question["context"].split(". ")]
        assert int(question["choices"][right].split("number ")[1].split()[0]) == shown[-1] + 1
        lengths = [len(choice.split()) for choice in question["choices"]]
        assert max(lengths) - min(lengths) <= 1
    assert len({question["answer"] for question in asked}) == 4


def test_the_same_text_gives_the_same_questions_that_eval_reads(tmp_path, monkeypatch):
    (tmp_path / "text.txt").write_text(_corpus())
    for name in ("a.jsonl", "b.jsonl"):
        out = str(tmp_path / name)
        monkeypatch.setattr(
            sys, "argv", ["next_sentence", str(tmp_path / "text.txt"), out, "--questions", "30"]
        )
        next_sentence.main()
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
    questions = read_questions(tmp_path / "a.jsonl")
    assert len(questions) == 30 and json.loads((tmp_path / "a.jsonl").open().readline())


def test_a_text_that_is_too_short_is_refused(tmp_path, monkeypatch):
    (tmp_path / "text.txt").write_text(_corpus(2))
    monkeypatch.setattr(
        sys, "argv", ["next_sentence", str(tmp_path / "text.txt"), str(tmp_path / "out.jsonl")]
    )
    with pytest.raises(SystemExit, match="questions only"):
        next_sentence.main()
    assert not (tmp_path / "out.jsonl").exists()
