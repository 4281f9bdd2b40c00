"""58 published cases of models that engines refuse, pad, serve slowly or take; what the engines'
code and threads say (``facts.toml``); and the parameters of 20 published models.

The cases are data of others (``tests/fixtures/lint``). A case counts as right if the worst outcome
is the one that was reported, and a product with that outcome holds the reported size.
"""

import json
import tomllib
from pathlib import Path

import pytest

from gacprof.demands.configs import config_of
from gacprof.linting import lint
from gacprof.linting.judging import parameters

FIXTURES = Path(__file__).parents[1] / "fixtures" / "lint"
CASES = json.loads((FIXTURES / "cases.json").read_text(encoding="utf-8"))


def judged(case):
    return lint(
        case["config"], engine=case["engine"], version=case["engine_version"], gpu=case["gpu"],
        tp=case["tp"], ep=case["ep"], ep_size=case.get("ep_size"), quant=case["quant"],
    )  # fmt: skip


def expected(case):
    """What was seen: a model that loads and answers wrongly was not refused."""
    return "wrong" if "silently wrong" in case.get("actual", "") else case["expected"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_a_case_is_judged_as_it_was_reported(case):
    found = judged(case)
    assert found.outcome == expected(case)
    sizes = [
        {*row.local.values(), row.size} for row in found.products if row.outcome == found.outcome
    ]
    assert any(case["local_size"] in held for held in sizes)


@pytest.mark.parametrize(
    "case", [c for c in CASES if "pads_to" in c], ids=lambda case: case["name"]
)
def test_padding_ends_at_the_reported_size(case):
    rows = [row for row in judged(case).products if row.padded_to]
    assert any(case["pads_to"] in row.padded_to.values() for row in rows)


@pytest.mark.parametrize(
    "case", [c for c in CASES if c.get("multiple") and c["axis"] != "any"], ids=lambda c: c["name"]
)
def test_the_multiple_that_was_asked_for_is_named(case):
    rows = [
        row for row in judged(case).products
        if case["local_size"] in {*row.local.values(), row.size} and row.multiple
    ]  # fmt: skip
    assert any(row.multiple % case["multiple"] == 0 for row in rows)


FACTS = tomllib.loads((FIXTURES / "facts.toml").read_text("utf-8"))
KNOWN = FACTS["models"]


def asked(text):
    engine, gpu, tp, *rest = text.split()
    return {
        "engine": engine, "gpu": gpu, "tp": int(tp.removeprefix("tp")), "ep": "ep" in rest,
        "quant": rest[-1],
    }  # fmt: skip


@pytest.mark.parametrize("case", FACTS["case"], ids=lambda case: case["name"])
def test_the_engine_does_with_it_what_its_code_says(case):
    config = KNOWN.get(case.get("model"), {}) | case.get("sizes", {})
    found = lint(config, **asked(case["asked"]))
    rows = [row for row in found.products if row.name == case["product"]]
    assert rows, [row.name for row in found.products]
    assert (found.outcome, rows[0].outcome) == (case["outcome"], case["outcome"]), [
        (row.name, row.outcome, row.local, row.why) for row in found.findings
    ]
    assert case["size"] in {*rows[0].local.values(), rows[0].size}


def row_of(found, name):
    return next(row for row in found.products if row.name == name)


def test_on_an_open_gpu_only_what_happens_on_all_is_said():
    """Refused on Ampere, Triton elsewhere: at least a fallback. Padded on some only: open."""
    found = lint(KNOWN["qwen_235b"], **asked("vllm any tp8 fp8_block"))
    row = row_of(found, "moe.w2")
    assert (row.outcome, found.outcome) == ("falls_back", "falls_back")
    assert "refused on sm75" in row.why
    row = row_of(lint(KNOWN["gemma4_moe"], **asked("vllm any tp4 bf16")), "moe.w2")
    assert row.outcome == "unknown"
    assert "pads on sm100" in row.why


def test_what_was_read_for_nvidia_is_not_said_of_amd():
    row = row_of(lint(KNOWN["qwen_235b"], **asked("vllm mi300x tp8 fp8_block")), "moe.w2")
    assert row.outcome == "unknown"
    assert "mi300x was not read" in row.why
    assert lint(KNOWN["qwen_235b"], **asked("vllm mi300x tp3 fp8_block")).outcome == "refused"


FILE = Path(__file__).parents[2] / "tools" / "lint_models.toml"
MODELS = tomllib.loads(FILE.read_text(encoding="utf-8"))

BILLIONS = {
    "Llama-3_1-8B": 8.03, "Llama-3_3-70B": 70.55, "Llama-3_1-405B": 405.85, "Gemma-3-27B": 27.01,
    "Phi-4": 14.66, "Qwen2_5-72B": 72.71, "Qwen3-8B": 8.19, "Qwen3-32B": 32.76,
    "Qwen3-30B-A3B": 30.53, "Qwen3-235B-A22B": 235.09, "Qwen3-Coder-480B": 480.15,
    "Qwen3-Next-80B-A3B": 79.67, "DeepSeek-V2-Lite": 15.71, "DeepSeek-V3": 671.03,
    "Kimi-K2": 1026.4, "GLM-4_5-Air": 106.85, "MiniMax-M2": 228.7, "Mixtral-8x7B": 46.70,
    "gpt-oss-120b": 116.83, "Nemotron-3-Nano-30B-A3B": 31.58,
}  # fmt: skip
"""By the models' cards and weight indices, without layers that predict further tokens."""


@pytest.mark.parametrize("name", MODELS)
def test_the_products_hold_the_published_parameters(name):
    """But norms, biases, routers and other small weights: under 0.1 %."""
    assert config_of(MODELS[name]).family is not None and not lint(MODELS[name]).notes
    assert parameters(config_of(MODELS[name])) == pytest.approx(BILLIONS[name] * 1e9, rel=1e-3)
