"""lm-evaluation-harness on our models, where it is installed."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("lm_eval")

from tiny_models import TEXT, write_tiny

from gacprof.core.errors import CheckpointError
from gacprof.evaluation.harness import run_tasks

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
