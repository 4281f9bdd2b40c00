"""What no verdict may call ok: configs that cannot exist, GPUs and versions that are too old."""

from __future__ import annotations

import pytest

from gacprof.core.errors import LintError
from gacprof.linting import lint

FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def outcomes(found) -> set[str]:
    return {row.outcome for row in found.products}


@pytest.mark.parametrize(
    "sizes",
    [
        {"num_attention_heads": 40, "num_key_value_heads": 12, "hidden_size": 5120},
        {"num_attention_heads": 24, "num_key_value_heads": 8, "hidden_size": 3584},
        {"num_key_value_heads": 5},
    ],
)
@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm", "transformers", "llama.cpp"])
def test_heads_that_cannot_be_grouped_are_refused(llama, sizes, engine):
    assert lint(llama | sizes, engine=engine).outcome == "refused"


def test_no_remedy_is_a_config_that_cannot_exist(llama):
    config = llama | {"num_attention_heads": 40, "num_key_value_heads": 10, "hidden_size": 5120}
    for tp in (3, 4, 8):
        for one in lint(config, tp=tp, gpu="h100").remedies:
            made = config | dict(one.config or {})
            assert made["num_attention_heads"] % made["num_key_value_heads"] == 0
            assert made["hidden_size"] % made["num_attention_heads"] == 0


@pytest.mark.parametrize("part", ["gate_proj", "model.layers.0.self_attn.q_proj"])
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_part_of_a_fused_product_cannot_stay_unquantised(llama, part, engine):
    config = llama | {"quantization_config": FP8 | {"modules_to_not_convert": [part]}}
    found = lint(config, gpu="h100", engine=engine)
    assert found.outcome == "refused"
    assert "not all shards" in " ".join(row.why for row in found.findings)


@pytest.mark.parametrize(
    ("gpu", "quant", "outcome"),
    [("v100", "bf16", "unknown"), ("v100", "fp8", "refused"), ("v100", "awq-g128", "refused"),
     ("t4", "bf16", "unknown"), ("a100", "fp8-block", "falls_back"), ("h100", "fp8-block", "ok")],
)  # fmt: skip
def test_gpus_that_are_too_old(llama, gpu, quant, outcome):
    assert lint(llama, gpu=gpu, quant=quant).outcome == outcome


@pytest.mark.parametrize(
    ("kind", "version", "gpu", "quant"),
    [("llama", "0.3", "h100", "bf16"), ("qwen3", "0.8.3", "h100", "bf16"),
     ("gpt_oss", "0.8.5", "h100", "bf16"), ("llama", "0.8.5", "a100", "nvfp4")],
)  # fmt: skip
def test_versions_that_are_too_old_are_not_known_to_serve(llama, kind, version, gpu, quant):
    found = lint(llama | {"model_type": kind}, engine=f"vllm=={version}", gpu=gpu, quant=quant)
    assert found.outcome not in ("ok", "pads", "falls_back")


@pytest.mark.parametrize(
    "quantization",
    [[1, 2], "fp8", FP8 | {"weight_block_size": [0, 0]}, FP8 | {"weight_block_size": 128},
     FP8 | {"modules_to_not_convert": ["re:("]}],
)  # fmt: skip
def test_a_malformed_quantization_config_is_refused_in_one_line(llama, quantization):
    with pytest.raises(LintError):
        lint(llama | {"quantization_config": quantization}, gpu="h100")


@pytest.mark.parametrize(("rank", "outcome"), [(16, "ok"), (24, "pads"), (1024, "refused")])
def test_an_adapter_is_padded_to_the_next_rank(llama, rank, outcome):
    found = lint(llama, gpu="h100", lora_rank=rank)
    assert found.outcome == outcome
    if outcome == "pads":
        assert next(row for row in found.products if row.padded_to).padded_to == {"global": 32}


def test_bytes_of_an_unknown_scheme_are_not_told(llama):
    config = llama | {"quantization_config": {"quant_method": "gptq", "bits": 3}}
    assert {one.bytes_per_rank for one in lint(config, gpu="h100").tp_table} == {None}
