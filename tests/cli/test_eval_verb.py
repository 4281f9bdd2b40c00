"""``gacprof eval`` as a user meets it."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("transformers")

from tiny_models import TEXT, tiny_model, tiny_tokenizer, write_tiny


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    folder = tmp_path_factory.mktemp("eval")
    write_tiny(folder / "a")
    write_tiny(folder / "b", seed=1)
    (folder / "text.txt").write_text(TEXT)
    return folder


def test_two_models_are_set_side_by_side(run, here):
    a, b = here / "a", here / "b"
    result = run("eval", a, b, "--text", here / "text.txt", "--window", 32)
    assert result.code == 0, result.err
    message = " ".join(result.out.split())
    for words in ("perplexity", "difference", f"{len(TEXT) - 1:,} predicted, each once",
                  "32 by 16", "hold together with 95 %"):  # fmt: skip
        assert words in message, words
    found = json.loads(run("eval", a, "--text", here / "text.txt", "--json").out)
    assert found["models"][0]["perplexity"]["tokens"] == len(TEXT) - 1 == found["tokens"] - 1


def test_numbers_that_are_not_finite_are_findings(run, here, tmp_path):
    model = tiny_model()
    model.lm_head.weight[0, 0] = float("inf")
    model.save_pretrained(tmp_path / "broken")
    tiny_tokenizer().save_pretrained(tmp_path / "broken")
    result = run("eval", tmp_path / "broken", "--text", here / "text.txt")
    assert result.code == 1 and "not finite" in result.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give a text (text=, --text), or run tasks (run_tasks(), --tasks)"),
        (["--text", "nowhere.txt"], "cannot read the text nowhere.txt"),
        (["--tasks", "arc_easy", "--text", "x"], "--tasks goes without --text"),
    ],
)
def test_bad_input_is_one_line(run, here, arguments, message):
    run("eval", here / "a", *arguments).refused(message)


def test_tasks_without_the_harness_say_what_to_install(run, here, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "lm_eval", None)
    result = run("eval", here / "a", "--tasks", "arc_easy")
    result.refused("pip install 'gacprof[lm-eval]'")


def test_the_harness_scores_are_shown_by_task_and_metric(run, here, monkeypatch):
    from gacprof.evaluation import harness

    scores = (harness.TaskScore("a", "arc_easy", "acc,none", 0.25, 0.01),)
    asked = []

    def run_tasks(request):
        asked.append(request)
        return harness.TaskScores(scores, "0.4.13")

    monkeypatch.setattr(harness, "run_tasks", run_tasks)
    result = run("eval", here / "a", "--tasks", "arc_easy,other", "--limit", "3")
    assert result.code == 0
    assert (asked[0].tasks, asked[0].limit) == (["arc_easy", "other"], 3)
    for words in ("arc_easy", "acc,none", "0.2500", "0.0100", "0.4.13"):
        assert words in result.out
