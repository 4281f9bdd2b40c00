"""What the engines' code and threads say, case by case (``tests/fixtures/lint/facts.toml``)."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from gacprof.linting import lint

FACTS = tomllib.loads((Path(__file__).parents[1] / "fixtures/lint/facts.toml").read_text("utf-8"))
MODELS = FACTS["models"]


def asked(text: str) -> dict:
    engine, gpu, tp, *rest = text.split()
    return {
        "engine": engine, "gpu": gpu, "tp": int(tp.removeprefix("tp")), "ep": "ep" in rest,
        "quant": rest[-1],
    }  # fmt: skip


@pytest.mark.parametrize("case", FACTS["case"], ids=lambda case: case["name"])
def test_the_engine_does_with_it_what_its_code_says(case):
    config = MODELS.get(case.get("model"), {}) | case.get("sizes", {})
    found = lint(config, **asked(case["asked"]))
    rows = [row for row in found.products if row.name == case["product"]]
    assert rows, [row.name for row in found.products]
    assert (found.outcome, rows[0].outcome) == (case["outcome"], case["outcome"]), [
        (row.name, row.outcome, row.local, row.why) for row in found.findings
    ]
    assert case["size"] in {*rows[0].local.values(), rows[0].size}


def row_of(found, name: str):
    return next(row for row in found.products if row.name == name)


def test_on_an_open_gpu_only_what_happens_on_all_is_said():
    """Refused on Ampere, Triton elsewhere: at least a fallback. Padded on some only: open."""
    found = lint(MODELS["qwen_235b"], **asked("vllm any tp8 fp8_block"))
    row = row_of(found, "moe.w2")
    assert (row.outcome, found.outcome) == ("falls_back", "falls_back")
    assert "refused on sm75" in row.why
    row = row_of(lint(MODELS["gemma4_moe"], **asked("vllm any tp4 bf16")), "moe.w2")
    assert row.outcome == "unknown"
    assert "pads on sm100" in row.why


def test_what_was_read_for_nvidia_is_not_said_of_amd():
    row = row_of(lint(MODELS["qwen_235b"], **asked("vllm mi300x tp8 fp8_block")), "moe.w2")
    assert row.outcome == "unknown"
    assert "mi300x was not read" in row.why
    assert lint(MODELS["qwen_235b"], **asked("vllm mi300x tp3 fp8_block")).outcome == "refused"
