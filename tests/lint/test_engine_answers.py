"""What vLLM and SGLang themselves answered, beside lint's rows."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from gacprof.kernels.requirements import load_answers
from gacprof.lint.deployment import deploy
from gacprof.lint.judge import overall
from gacprof.lint.lint import lint
from gacprof.reporting.sections import section_of

TOOLS = Path(__file__).parents[2] / "tools" / "ask_engine"
QWEN = {
    "model_type": "qwen3_moe",
    "hidden_size": 4096,
    "moe_intermediate_size": 1536,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "vocab_size": 151936,
}
DIFFER = {
    "dense with intermediate_size 8192 num_key_value_heads 8 head_dim 64 fp8-block, h100, tp 8, "
    "ep 1": "merged scales do not fit when a checkpoint is loaded; weights of zeros are not",
    "dense with head_dim 72 num_key_value_heads 2 fp8-block, h100, tp 1, ep 1": "the same",
    "moe with moe_intermediate_size 832 fp8-block, h100, tp 1, ep 1": "the same: 7 blocks are "
    "stored, halved 14, and 13 fit",
    "moe with moe_intermediate_size 832 fp8-block, b200, tp 1, ep 1": "the same",
    "moe with moe_intermediate_size 832 awq-g128, a100, tp 1, ep 1": "the same, of groups",
    "moe with moe_intermediate_size 832 gptq-g128, a100, tp 1, ep 1": "the same",
    "linear with linear_value_head_dim 64 bf16, h100, tp 1, ep 1": "128 beside 64 is not compiled, "
    "64 beside 64 may be: the row says unknown of any but 128",
    "base moe fp8, b200, tp 1, ep 1": "SGLang serves static scales and refuses dynamic ones: lint "
    "does not know which",
    "moe with moe_intermediate_size 776 fp8, b200, tp 1, ep 1": "the same",
    "grid Qwen3-30B-A3B fp8, b200, tp 1, ep 1": "the same",
}
"""Questions of which rows and engine say different things, and why the row stands."""


def questions() -> list[dict[str, Any]]:
    spec = importlib.util.spec_from_file_location("questions", TOOLS / "questions.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    asked = [*module.questions(), *module.grid()]
    return list({question["name"]: question for question in asked}.values())


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_rows_refuse_what_the_engine_refuses(engine: str) -> None:
    answers = load_answers(engine)["answers"]
    compared = 0
    for question in questions():
        ranks = {"tp": question["tp"], "ep": question["ep"]}
        deployment = deploy(question["config"], engine=engine, gpu=question["gpu"], **ranks)
        every = deployment.judgements()
        # the engine was asked of two layers, which fit any memory
        judgements = [one for one in every if one.product.role != "weights"]
        answer = answers.get(deployment.question(judgements))
        if answer is None or answer["verdict"] == "not run":
            continue
        compared += 1
        is_same = (overall(judgements) == "refused") == (answer["verdict"] == "refused")
        assert is_same or question["name"] in DIFFER, (question["name"], answer["says"])
    assert compared > 100


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_answers_name_versions_and_kernels(engine: str) -> None:
    data = load_answers(engine)
    assert data["version"] in data["provenance"] and "virtual" in data["provenance"]
    for answer in data["answers"].values():
        assert answer["verdict"] in ("ok", "not run", "refused")
        assert all(data["kernels"][index] for index in answer["kernels"].values())


@pytest.mark.parametrize("ep, experts", [(1, "TritonExperts"), (8, "FlashInferExperts")])
def test_the_engine_says_which_kernel_serves_a_product(ep: int, experts: str) -> None:
    report = lint(QWEN, gpu="h100", tp=8, ep=ep, quantisation="fp8-block")
    launches = {row.product: row.launches for row in report.products}
    assert launches["moe.w2"].startswith(experts)
    assert "DeepGEMM" in launches["qkv"]
    assert "vllm" in report.engine_says
    kernels = {row[0]: row[4] for row in section_of(report).rows}
    assert kernels["qkv"] == launches["qkv"]
    again = lint({**QWEN, "quantization_config": json.loads(BLOCK)}, gpu="h100", tp=8, ep=ep)
    assert again.engine_says == report.engine_says


BLOCK = """
{"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
"""


def test_a_remedy_says_its_kernels() -> None:
    report = lint(QWEN, gpu="h100", tp=8, quantisation="fp8-block")
    shared_out = next(remedy for remedy in report.remedies if remedy.kind == "ep")
    assert shared_out.launches["moe.w2"].startswith("FlashInferExperts")


@pytest.mark.parametrize(
    "options", [{"gpu": "h200"}, {"gpu": "h100", "version": "0.20"}, {"tp": 2}]
)
def test_another_question_has_no_answer(options: dict[str, Any]) -> None:
    report = lint(QWEN, quantisation="fp8-block", **{"tp": 8, **options})
    assert not report.engine_says
    assert not any(row.launches for row in report.products)


def test_an_answer_in_bfloat16_is_none_in_float16() -> None:
    config = {**QWEN, "torch_dtype": "float16"}
    assert not lint(config, gpu="h100", tp=8, quantisation="fp8-block").engine_says
