"""Evaluating several models: the same tokens for all, differences to the first, clear refusals."""

import json
import math

import pytest

import gacprof
from gacprof.core.errors import CheckpointError, MemoryExhaustedError
from gacprof.evaluation.harness import run_tasks

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tiny_models import POSITIONS, TEXT, tiny_model, tiny_tokenizer, write_tiny  # noqa: E402


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluating")
    write_tiny(folder / "a")
    write_tiny(folder / "b", seed=1)
    (folder / "text.txt").write_text(TEXT)
    return folder


def test_the_perplexity_is_that_of_the_model_itself(here):
    found = gacprof.evaluate(here / "a", text=here / "text.txt", limit_tokens=POSITIONS)
    ids = torch.tensor(tiny_tokenizer()(TEXT)["input_ids"][:POSITIONS])
    loss = float(tiny_model()(ids[None], labels=ids[None]).loss)
    (one,) = found.models
    assert one.perplexity.value == pytest.approx(math.exp(loss), rel=1e-4)
    assert (found.tokens, one.perplexity.tokens) == (POSITIONS, POSITIONS - 1)
    assert list(found.to_frame()["perplexity"]) == [one.perplexity.value]
    assert any("one window" in note for note in found.notes)


def test_a_token_that_begins_a_text_is_context_and_not_predicted(here, tmp_path):
    write_tiny(tmp_path / "begins", begins=True)
    found = gacprof.evaluate(tmp_path / "begins", text=here / "text.txt", limit_tokens=40)
    ids = torch.tensor([0, *tiny_tokenizer()(TEXT)["input_ids"]][:40])
    loss = float(tiny_model()(ids[None], labels=ids[None]).loss)
    assert found.models[0].perplexity.value == pytest.approx(math.exp(loss), rel=1e-4)


def test_two_models_are_compared_window_by_window(here):
    found = gacprof.evaluate(
        [here / "a", here / "b", here / "a"],
        text=here / "text.txt", window=32, stride=16,
    )  # fmt: skip
    first, other, same = found.models
    assert [m.model for m in found.models] == ["a (1)", "b", "a (2)"]
    assert sum(found.window_tokens) == found.tokens - 1 and found.stride == 16
    assert len(first.nll) == len(found.window_tokens) > 10
    assert first.perplexity_change is None
    change = other.perplexity_change
    assert change.value == pytest.approx(other.perplexity.value / first.perplexity.value - 1)
    assert change.low < change.value < change.high
    assert (same.perplexity_change.low, same.perplexity_change.high) == (0.0, 0.0)
    assert found.level == pytest.approx(0.025)
    json.dumps(found.as_dict(), allow_nan=False)


def test_a_model_in_memory_is_evaluated_with_a_named_tokenizer(here):
    by_path = gacprof.evaluate(here / "a", text=here / "text.txt")
    in_memory = gacprof.evaluate(tiny_model(), text=here / "text.txt", tokenizer=here / "a")
    assert in_memory.models[0].perplexity == by_path.models[0].perplexity
    with pytest.raises(CheckpointError, match="brings no tokenizer"):
        gacprof.evaluate(tiny_model(), text=here / "text.txt")


@pytest.mark.slow
def test_a_compressed_checkpoint_is_evaluated_with_the_originals_tokenizer(
    fixtures, here, tmp_path
):
    asvd = fixtures / "checkpoints" / "asvd_mha_r1"
    gacprof.realign(asvd, "minimal", tmp_path / "padded")
    with pytest.raises(CheckpointError, match="needs a tokenizer"):
        gacprof.evaluate(asvd, text=here / "text.txt")
    found = gacprof.evaluate(
        [asvd, tmp_path / "padded"], text=here / "text.txt", tokenizer=here / "a",
        window=32, dtype="float32",
    )  # fmt: skip
    exact = found.models[1].perplexity_change  # padding with zeros changes nothing but rounding
    assert abs(exact.value) < 1e-4 and exact.low - 1e-6 <= 0 <= exact.high + 1e-6


def test_models_of_different_tokenizers_are_not_compared(here, tmp_path):
    write_tiny(tmp_path / "other", seed=1)
    tiny_tokenizer("zyx").save_pretrained(tmp_path / "other")
    with pytest.raises(CheckpointError, match="split the text otherwise"):
        gacprof.evaluate([here / "a", tmp_path / "other"], text=here / "text.txt")
    named = gacprof.evaluate(
        [here / "a", tmp_path / "other"], text=here / "text.txt", tokenizer=here / "a"
    )
    assert named.models[1].perplexity.value is not None


def test_nan_logits_are_told_and_are_still_json(here):
    model = tiny_model()
    model.lm_head.weight[0, 0] = float("nan")
    found = gacprof.evaluate(
        [model, here / "a"], text=here / "text.txt", tokenizer=here / "a", window=32,
    )  # fmt: skip
    broken, fine = found.models
    assert not found.finite and not broken.finite and fine.finite
    assert broken.perplexity.value is None and fine.perplexity_change is None
    json.dumps(found.as_dict(), allow_nan=False)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"text": "nowhere.txt"}, "cannot read the text"),
        ({"text": "empty.txt"}, "is empty"),
        ({"text": "one.txt"}, "fewer than two tokens"),
        ({"text": "text.txt", "limit_tokens": 1}, "whole number of at least 2"),
        ({"text": "text.txt", "window": 16, "stride": 17}, "it is from 1 to"),
        ({"text": "text.txt", "stride": 0}, "stride is 0"),
        ({"text": "text.txt", "batch": 0}, "batch is 0"),
        ({"text": "text.txt", "window": 65}, "has 64 positions"),
        ({"text": "text.txt", "tokenizer": "nothing"}, "has no tokenizer"),
        ({"text": "text.txt", "dtype": "int3"}, "dtype 'int3' is unknown"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_in_one_line(here, monkeypatch, more, message):
    monkeypatch.chdir(here)
    (here / "empty.txt").write_text(" \n")
    (here / "one.txt").write_text("a")
    (here / "nothing").mkdir(exist_ok=True)
    with pytest.raises(CheckpointError, match=message) as raised:
        gacprof.evaluate("a", **more)
    assert "\n" not in str(raised.value)


def test_a_forward_pass_that_fails_is_one_line_and_no_memory_is_no_finding(here, monkeypatch):
    model = tiny_model()
    for error, kind, said in (
        (IndexError("no\nsuch row"), CheckpointError, r"LlamaForCausalLM: its forward pass fails "),
        (MemoryError(), MemoryExhaustedError, "out of memory: MemoryError; take a smaller window"),
    ):

        def fails(*_, error=error, **__):
            raise error

        monkeypatch.setattr(model, "forward", fails)
        with pytest.raises(kind, match=said) as raised:
            gacprof.evaluate(model, text=here / "text.txt", tokenizer=here / "a")
        assert raised.value.exit_code == (2 if kind is CheckpointError else 70)


def test_a_tokenizer_of_another_model_or_that_fails_is_named(here, tmp_path):
    write_tiny(tmp_path / "small", vocab_size=20)
    with pytest.raises(CheckpointError, match="knows 20 tokens, the text has"):
        gacprof.evaluate(tmp_path / "small", text=here / "text.txt")
    settings = json.loads((here / "a" / "tokenizer_config.json").read_text())
    settings = json.dumps(settings | {"model_max_length": "x"})
    (tmp_path / "small" / "tokenizer_config.json").write_text(settings)
    with pytest.raises(CheckpointError, match="its tokenizer fails on the text"):
        gacprof.evaluate(tmp_path / "small", text=here / "text.txt")


TASK = """
task: tiny_choices
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
output_type: multiple_choice
test_split: test
doc_to_text: question
doc_to_choice: choices
doc_to_target: answer
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
"""


def test_the_harness_runs_its_tasks_on_our_model(tmp_path):
    pytest.importorskip("lm_eval")
    questions = [
        {"question": TEXT[i : i + 9].strip(), "choices": [TEXT[2 * i : 2 * i + 5] + "x", "no"],
         "answer": i % 2}
        for i in range(20)
    ]  # fmt: skip
    file = tmp_path / "q.jsonl"
    file.write_text("\n".join(map(json.dumps, questions)))
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "tiny.yaml").write_text(TASK.format(file=file))
    model = write_tiny(tmp_path / "model")
    found = run_tasks([model], ["tiny_choices"], task_folder=tmp_path / "tasks", device="cpu")
    found_metrics = {score.metric: score for score in found.scores}
    assert found_metrics.keys() >= {"acc,none", "acc_norm,none"}
    right = found_metrics["acc,none"].value * len(questions)
    assert right == pytest.approx(round(right)) and found_metrics["acc,none"].error > 0
    with pytest.raises(CheckpointError, match="lm-evaluation-harness"):
        run_tasks([model], ["no_such_task"], device="cpu")
