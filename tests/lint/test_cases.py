"""Published cases of models that engines refuse, pad, serve slowly or take, and what the engines'
code says of others; refusals as frozen.

A case counts as right if the worst outcome is the one that was reported, and a product with that
outcome holds the reported size.
"""

from __future__ import annotations

import gzip
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from gacprof.lint.deployment import deploy
from gacprof.lint.judge import overall
from gacprof.lint.lint import lint
from gacprof.lint.report import LintReport

TESTS = Path(__file__).parents[1]
FIXTURES = TESTS / "fixtures" / "lint"
CASES = json.loads((FIXTURES / "cases.json").read_text(encoding="utf-8"))
FACTS = tomllib.loads((FIXTURES / "facts.toml").read_text(encoding="utf-8"))
GOLDENS = json.loads(gzip.decompress((TESTS / "goldens" / "lint.json.gz").read_bytes()))

LEFT_OUT = {
    *("lora-rank-48-vllm", "lora-rank-64-vllm"),  # adapters are not judged any more
    "bamba-tp8-one-group",  # vLLM dropped the class after 0.23.0: transformers' code may serve it
}
CHANGED = {
    "fp8 a100 0.32": "falls back",  # fp8 before Ada is weights alone, padded too
    "kv trt": "unknown",  # whether 4 ranks share 10 heads was not read
    "235b tp8 mi300x": "unknown",  # no row says what attention takes on AMD
    "int8 bad": "unknown",  # nor what experts in int8 need on an A100
}
"""Facts whose outcome is another since 0.2.0."""

NOT_LOADED = {"mimo-v2-flash-fp8-tp4-qkv-vllm"}
"""Wrong or a loader's error, its author says: 6 entries of k are none for the last of 4 ranks."""

LEFT_OUT_KEYS = (
    *("model_type", "head_dim", "rotary_dim", "first_k_dense_replace", "n_group", "topk_group"),
)
"""What published configs say besides, and those of the cases leave out."""

VERSIONS = {"vllm": "0.32.0"}
"""Versions that the facts are of, where a newer one was read since."""


def lint_sizes(config: dict[str, Any], **options: Any) -> LintReport:
    """A report on the sizes that a case names; some are a vocabulary or a width alone. An engine's
    version may be older than those whose classes were read."""
    missing = lint(config, **options).missing
    return lint(config, **options, accept=[*missing, *LEFT_OUT_KEYS, options["engine"]])


def judge_case(case: dict[str, Any]) -> LintReport:
    version = case["engine_version"].split(",")[0].replace("1.x", "1.1")
    ep = case.get("ep_size") or (case["tp"] if case["ep"] else 1)
    return lint_sizes(
        case["config"],
        engine=case["engine"],
        version=version,
        gpu=case["gpu"],
        tp=case["tp"],
        ep=ep,
        quantisation=case["quant"],
    )


def judge_fact(case: dict[str, Any]) -> LintReport:
    engine, gpu, tp, *rest = case["asked"].split()
    ranks = int(tp.removeprefix("tp"))
    config = FACTS["models"].get(case.get("model"), {}) | case.get("sizes", {})
    ep = ranks if "ep" in rest else 1
    version = VERSIONS.get(engine)
    return lint_sizes(
        config, engine=engine, version=version, gpu=gpu, tp=ranks, ep=ep, quantisation=rest[-1]
    )


def expected(case: dict[str, Any]) -> str:
    """The outcome seen: a model that loads and answers wrongly was not refused."""
    wrong = "silently wrong" in case.get("actual", "") and case["name"] not in NOT_LOADED
    return "wrong" if wrong else case["expected"].replace("_", " ")


def is_right(case: dict[str, Any]) -> bool:
    report = judge_case(case)
    rows = [row for row in report.products if row.outcome == report.outcome]
    sizes = [size for row in rows for size in (row.N, row.K, row.size)]
    return report.outcome == expected(case) and case["local_size"] in sizes


def test_cases_are_judged_as_reported() -> None:
    wrong = [case["name"] for case in CASES if not is_right(case)]
    assert set(wrong) == LEFT_OUT


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_nothing_bad_is_called_ok_and_refusals_are_as_before(case: dict[str, Any]) -> None:
    report = judge_case(case)
    assert not report.ok or expected(case) == "ok"
    if case["name"] not in LEFT_OUT | NOT_LOADED:
        assert refused(report) == refused_before(GOLDENS["cases"][case["name"]])


@pytest.mark.parametrize("case", FACTS["case"], ids=lambda case: case["name"])
def test_the_engine_does_what_its_code_says(case: dict[str, Any]) -> None:
    report = judge_fact(case)
    assert refused(report) == refused_before(GOLDENS["facts"][case["name"]])
    row = next(row for row in report.products if row.product == case["product"])
    assert case["size"] in (row.N, row.K, row.size)
    if case["name"] in CHANGED:
        assert report.outcome == CHANGED[case["name"]]
    else:
        outcome = case["outcome"].replace("_", " ")
        assert (report.outcome, row.outcome) == (outcome, outcome)


def refused(report: LintReport) -> set[str]:
    return {row.product for row in report.products if row.outcome == "refused"}


def refused_before(golden: dict[str, Any]) -> set[str]:
    return {name for name, row in golden["products"].items() if row["outcome"] == "refused"}


@pytest.mark.parametrize("case", [c for c in CASES if "pads_to" in c], ids=lambda c: c["name"])
def test_padding_ends_at_the_reported_size(case: dict[str, Any]) -> None:
    targets = [size for row in judge_case(case).products for size in row.pads_to.values()]
    assert case["pads_to"] in targets


MODELS = tomllib.loads((TESTS.parent / "tools" / "lint_models.toml").read_text(encoding="utf-8"))


READ_SINCE = {
    ("vllm", "int8"): "Blackwell refuses it at the first forward",
    ("sglang", "int8"): "the same",
    ("vllm", "gptq-g128"): "a side that ranks don't share has to hold all scales that are stored",
    ("sglang", "awq-g128"): "experts on sm100 are not Marlin's",
    ("sglang", "gptq-g128"): "the same",
    ("sglang", "fp8-block"): "inputs off 128 are refused at the first forward",
    ("tensorrt-llm", "mxfp4"): "dense layers of gpt-oss alone are left out",
    ("tensorrt-llm", "fp8-block"): "its default experts are Hopper's",
    ("llama.cpp", "mxfp4"): "gpt-oss alone is converted",
    ("sglang", "mxfp4"): "gpt-oss alone is built",
    ("transformers", "fp8-block"): "its kernels assert whole blocks",
    ("transformers", "fp8"): "it is stored in blocks",
}


@pytest.mark.parametrize("model", MODELS)
def test_refusals_of_published_models_are_as_before(model: str) -> None:
    """But for what was read or asked since."""
    for key, cells in GOLDENS["table"].items():
        name, engine, gpu, quantisation = key.split("|")
        if name != model or gpu != "b200" or (engine, quantisation) in READ_SINCE:
            continue
        for tp in (2, 8) if quantisation == "fp8-block" else (8,):
            before = cells[f"tp{tp}"]
            deployment = deploy(
                MODELS[model],
                engine=engine,
                version=VERSIONS.get(engine),
                gpu=gpu,
                tp=tp,
                quantisation=quantisation,
            )
            every = deployment.judgements()
            # whether weights fit was not asked before: the table is of sizes
            judgements = [one for one in every if one.product.role != "weights"]
            outcomes = {judgement.product.name: judgement.outcome for judgement in judgements}
            assert (overall(judgements) == "refused") == (before[0] == "refused"), key
            for product, letter in zip(cells["products"], before[1], strict=True):
                assert (outcomes[product] == "refused") == (letter == "R"), (key, product)
