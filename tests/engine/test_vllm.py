"""Golden questions asked of an installed vLLM anew: verdicts and kernels are as recorded.

GACPROF_VLLM_PYTHON=.venv-vllm/bin/python pytest tests/engine
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "tools" / "ask_vllm"
PYTHON = os.environ.get("GACPROF_VLLM_PYTHON", "")
MODELS = ("Llama-3.1-8B", "Qwen3-8B", "Qwen3-30B", "Phi-4", "gpt-oss", "DeepSeek-V2")


@pytest.mark.skipif(not PYTHON, reason="GACPROF_VLLM_PYTHON names no python with vLLM")
def test_golden_questions_are_answered_as_recorded(tmp_path: Path) -> None:
    every, chosen, answers = (tmp_path / name for name in ("every.json", "some.json", "answers"))
    subprocess.run([sys.executable, TOOL / "questions.py", every], check=True)
    questions = [q for q in json.loads(every.read_text()) if q["name"].startswith(MODELS)]
    chosen.write_text(json.dumps(questions))
    for gpu in dict.fromkeys(question["gpu"] for question in questions):
        ask = [PYTHON, TOOL, chosen, "--answers", answers]
        gacprof = [sys.executable, "-m", "gacprof", "virtual", gpu, "--", *ask]
        subprocess.run(gacprof, check=True, cwd=ROOT)
    subprocess.run([sys.executable, TOOL / "record.py", answers, tmp_path], check=True)
    (written,) = tmp_path.glob("answers-*.json")
    again = json.loads(written.read_text())
    recorded = ROOT / "gacprof" / "kernels" / "demands" / written.name
    assert recorded.exists(), f"no answers of vLLM {again['version']} are recorded: a new release"
    before = json.loads(recorded.read_text())
    for key, answer in again["answers"].items():
        old = before["answers"][key]
        assert answer["verdict"] == old["verdict"], answer["of"]
        kernels = {name: again["kernels"][i] for name, i in answer["kernels"].items()}
        assert kernels == {name: before["kernels"][i] for name, i in old["kernels"].items()}
