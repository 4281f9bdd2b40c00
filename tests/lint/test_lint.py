"""No ok without a row, head_dims by backend, ignore lists, and remedies that hold."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from gacprof.checkpoint.storage import storage_of_config
from gacprof.core.errors import ConfigError
from gacprof.core.files import plain
from gacprof.kernels.requirements import load_engine
from gacprof.lint.deployment import deploy
from gacprof.lint.judge import OUTCOMES
from gacprof.lint.lint import lint
from gacprof.lint.remedies import with_field
from gacprof.lint.report import sarif
from gacprof.reporting.sections import section_of
from gacprof.workload.memory import weight_bytes

ENGINES = ("vllm", "sglang", "tensorrt-llm", "transformers", "llama.cpp")
LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "num_hidden_layers": 32,
}
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
GEMMA = {
    **LLAMA,
    "model_type": "gemma4",
    "head_dim": 256,
    "global_head_dim": 512,
    "num_key_value_heads": 16,
    "num_global_key_value_heads": 4,
}
TOOLS = Path(__file__).parents[2] / "tools"
CONFIGS = Path(__file__).parents[1] / "fixtures" / "configs"
MODELS = tomllib.loads((TOOLS / "lint_models.toml").read_text(encoding="utf-8"))
FP8_BLOCK = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
AUTO_ROUND = {"quant_method": "auto-round", "bits": 4, "group_size": 128}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}

FP8 = {"type": "float", "num_bits": 8, "strategy": "channel"}
FP8_INPUTS = {"type": "float", "num_bits": 8, "strategy": "token", "dynamic": True}
FP8_GROUP: dict[str, Any] = {"format": "float-quantized", "input_activations": FP8_INPUTS}
MXFP4 = {"type": "float", "num_bits": 4, "strategy": "group", "group_size": 32}
FP4 = {"type": "float", "num_bits": 4, "strategy": "tensor_group", "group_size": 16}
INT4 = {"type": "int", "num_bits": 4, "strategy": "group", "group_size": 128}


def compressed(
    *weights: dict[str, Any],
    targets: list[str] | None = None,
    format: str = "pack-quantized",
    **of_group: Any,
) -> dict[str, Any]:
    """A quantization_config of compressed-tensors with a group for each of these weights."""
    groups = {
        f"group_{i}": {"targets": targets or ["Linear"], "weights": each, **of_group}
        for i, each in enumerate(weights)
    }
    return {"quant_method": "compressed-tensors", "format": format, "config_groups": groups}


def without(stated: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in stated.items() if name != key}


def outcomes(report: Any) -> dict[str, str]:
    return {row.product: row.outcome for row in report.products}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("quantisation", ["bf16", "fp8", "fp8-block", "nvfp4", "awq-g128", "int8"])
@pytest.mark.parametrize("gpu", ["a100", "l40s", "b200", "mi300x"])
def test_an_ok_rests_on_a_row_with_a_source(engine: str, quantisation: str, gpu: str) -> None:
    for config in (LLAMA, QWEN):
        report = lint(config, engine=engine, gpu=gpu, quantisation=quantisation)
        for row in report.products:
            is_product = row.storage != "none" or row.K > 0
            if row.outcome == "ok" and is_product:
                assert row.source and row.requirement, row
        unjudged = [row for row in report.products if row.outcome == "unknown"]
        assert not (report.outcome == "ok" and unjudged)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize(
    "gpu, quantisation", [("a100", "fp8-block"), ("l40s", "fp8-block"), ("h100", "nvfp4")]
)
def test_weights_only_serving_falls_back(engine: str, gpu: str, quantisation: str) -> None:
    report = lint(LLAMA, engine=engine, gpu=gpu, quantisation=quantisation)
    assert report.outcome == "falls back"
    assert not report.ok


def test_vllm_refuses_int8_on_blackwell() -> None:
    assert lint(LLAMA, gpu="rtx5090", quantisation="int8").outcome == "refused"
    assert lint(LLAMA, gpu="h100", quantisation="int8").outcome == "ok"


def test_tensorrt_llm_cuts_scales_by_whole_blocks() -> None:
    config = {**LLAMA, "intermediate_size": 29568}
    report = lint(config, engine="tensorrt-llm", gpu="h100", tp=2, quantisation="fp8-block")
    assert outcomes(report)["down"] == "wrong"


@pytest.mark.parametrize(
    "engine, gpu, outcome",
    [
        ("vllm", "rtx4090", "falls back"),
        ("vllm==0.32", "h100", "falls back"),
        ("vllm", "h100", "ok"),
        ("vllm", "t4", "refused"),
        ("sglang", "h100", "falls back"),
        ("sglang", "b200", "ok"),
        ("tensorrt-llm", "h100", "refused"),
        ("tensorrt-llm", "rtx5090", "refused"),
        ("transformers", "h100", "falls back"),
        ("llama.cpp", "rtx4090", "ok"),
    ],
)
def test_a_global_head_dim_of_512_is_judged(engine: str, gpu: str, outcome: str) -> None:
    report = lint(GEMMA, engine=engine, gpu=gpu)
    assert outcomes(report)["attention head_dim (global)"] == outcome
    keys = next(row for row in report.products if row.product in ("qkv (global).k", "k (global)"))
    assert keys.N == 4 * 512


@pytest.mark.parametrize(
    "engine, ranks, outcome",
    [
        ("vllm", {"tp": 4, "ep": 8}, "refused"),
        ("vllm", {"tp": 8, "ep": 2}, "refused"),
        ("vllm", {"tp": 1, "ep": 3}, "refused"),
        ("vllm", {"tp": 8, "ep": 8}, "ok"),
        ("vllm", {"tp": 2, "dp": 4, "ep": 8}, "ok"),
        ("vllm", {"tp": 2, "dp": 4, "ep": 4}, "refused"),
        ("sglang", {"tp": 8, "ep": 2}, "ok"),
        ("sglang", {"tp": 4, "ep": 8}, "refused"),
        ("tensorrt-llm", {"tp": 8, "ep": 2}, "ok"),
        ("tensorrt-llm", {"tp": 4, "ep": 8}, "refused"),
        ("transformers", {"tp": 4, "ep": 4}, "ok"),
        ("transformers", {"tp": 4, "ep": 2}, "refused"),
    ],
)
def test_expert_parallel_ranks_fit_the_others(
    engine: str, ranks: dict[str, int], outcome: str
) -> None:
    assert lint(QWEN, engine=engine, gpu="h100", **ranks).outcome == outcome


PUBLISHED = {  # GB of the safetensors files, without layers that guess ahead
    ("Llama-3_1-8B", "bf16"): 16.06,
    ("Mixtral-8x7B", "bf16"): 93.4,
    ("Qwen2_5-72B", "gptq-g128"): 41.6,
    ("Qwen3-235B-A22B", "fp8-block"): 236.4,
    ("Qwen3-Next-80B-A3B", "bf16"): 162.7 - 3.2,
    ("DeepSeek-V3", "fp8-block"): 671.0,
    ("gpt-oss-120b", "mxfp4"): 65.2,
    ("Nemotron-3-Nano-30B-A3B", "bf16"): 63.2,
}


def weights_of(config: dict[str, Any], **served: Any) -> int | None:
    """The bytes of weights that a rank holds."""
    deployment = deploy(config, **served)
    return weight_bytes(deployment.sizes, deployment.inventory, deployment)


@pytest.mark.parametrize("model, quantisation", PUBLISHED)
def test_weights_have_the_published_size(model: str, quantisation: str) -> None:
    config = {**MODELS[model], "tie_word_embeddings": False}
    published = PUBLISHED[model, quantisation]
    counted = weights_of(config, quantisation=quantisation)
    assert counted is not None
    assert counted / 1e9 == pytest.approx(published, rel=0.01)
    on_two = weights_of(config, quantisation=quantisation, tp=2)
    assert on_two is not None
    assert on_two == pytest.approx(counted / 2, rel=0.02)


def test_weights_that_a_gpu_does_not_hold_are_refused() -> None:
    config = {**MODELS["DeepSeek-V3"], "tie_word_embeddings": False}
    for tp, outcome in ((4, "refused"), (8, "refused"), (16, "ok")):
        report = lint(config, gpu="h100", tp=tp, quantisation="fp8-block")
        assert outcomes(report)["weights of a rank (GiB)"] == outcome
    unlayered = {name: value for name, value in config.items() if name != "num_hidden_layers"}
    assert weights_of(unlayered) is None


def test_a_head_dim_of_256_with_fp8_keys_and_values_is_unfused_on_sm120() -> None:
    config = {**LLAMA, "head_dim": 256}
    fp8 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}
    for stated, outcome in (({}, "ok"), ({"quantization_config": fp8}, "falls back")):
        report = lint({**config, **stated}, engine="tensorrt-llm", gpu="rtx5090")
        assert outcomes(report)["attention head_dim"] == outcome


@pytest.mark.parametrize(
    "extra",
    [
        {"truncation_ranks": {"model.layers.0.self_attn.q_proj": 107}},
        {"head_wise_ranks": {"model.layers.0.self_attn.k_proj": [51, 60]}},
        {"architectures": ["ASVDLlamaForCausalLM"]},
        {"num_attention_heads": [32, 24]},
        {"intermediate_size": -1},
        {"hidden_size": "4096"},
    ],
)
def test_a_compressed_or_broken_config_is_refused(extra: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        lint({**LLAMA, **extra})


def test_widths_that_differ_from_layer_to_layer_are_judged_each() -> None:
    report = lint({**LLAMA, "intermediate_size": [14336, 14337]}, tp=2, gpu="h100")
    assert outcomes(report)["down (14336)"] == "ok"
    assert outcomes(report)["down (14337)"] == "refused"


def test_what_the_config_leaves_out_is_named() -> None:
    config = {"model_type": "llama", "intermediate_size": 14336}
    report = lint(config, tp=8, quantisation="gptq-g128")
    assert "hidden_size" in report.missing
    assert report.summary != "ok"


def test_ignored_modules_stay_16_bit() -> None:
    stated = {**FP8_BLOCK, "modules_to_not_convert": ["re:.*down_proj", "lm_head"]}
    for layers in range(3):
        stated["modules_to_not_convert"].append(f"model.layers.{layers}.self_attn.o_proj")
    config = {**LLAMA, "quantization_config": stated, "num_hidden_layers": 3}
    rows = {row.product: row for row in lint(config, gpu="h100").products}
    assert rows["down"].storage == rows["o"].storage == "none"
    assert rows["gate_up"].storage == "fp8_block"
    partly = {**FP8_BLOCK, "modules_to_not_convert": ["gate_proj"]}
    report = lint({**LLAMA, "quantization_config": partly}, gpu="h100")
    assert outcomes(report)["gate_up"] == "refused"


@pytest.mark.parametrize(
    "stated, form",
    [
        ({"quant_method": "fp8", "activation_scheme": "static"}, "fp8_tensor"),
        (without(FP8_BLOCK, "activation_scheme"), "unknown"),
        (FP8_BLOCK | {"activation_scheme": "static"}, "unknown"),
        (FP8_BLOCK | {"activation_scheme": "dynamicc"}, "unknown"),
        (FP8_BLOCK | {"fmt": "e5m2"}, "unknown"),
        (FP8_BLOCK, "fp8_block"),
        (GPTQ | {"group_size": 64}, "gptq"),
        (GPTQ | {"bits": 8}, "int8_w8a16"),
        *[(without(GPTQ, key), "unknown") for key in ("bits", "group_size", "desc_act", "sym")],
        (GPTQ | {"group_size": 0}, "unknown"),
        (AWQ, "awq"),
        (AWQ | {"version": "GEMM"}, "awq"),
        (AWQ | {"version": "gemv"}, "unknown"),
        (without(AWQ, "zero_point"), "unknown"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bnb"),
        ({"quant_method": "nobody_knows"}, "unknown"),
        ({"group_size": 128}, "unknown"),
        ({"w_bit": 4, "q_group_size": 128, "version": "GEMM", "zero_point": True}, "awq"),
        (without(GPTQ, "quant_method") | {"damp_percent": 0.01}, "gptq"),
        ({"quantization": {"quant_algo": "FP8"}}, "fp8_tensor"),
        (GPTQ | {"dynamic": {"-:.*lm_head": {}}}, "gptq"),
        (GPTQ | {"dynamic": {"+:.*gate": {"bits": 8}}}, "unknown"),
        (AUTO_ROUND | {"extra_config": {"x": {"bits": 16}}}, "gptq"),
        (AUTO_ROUND | {"extra_config": {"x": {"bits": 8}}}, "unknown"),
        (AUTO_ROUND | {"data_type": "nv_fp"}, "unknown"),
        (without(AUTO_ROUND, "group_size"), "unknown"),
        (FP8_BLOCK | {"weight_block_size": [1, 128]}, "unknown"),
        (GPTQ | {"checkpoint_format": "bitblas"}, "unknown"),
        (compressed(INT4), "int4"),
        (compressed(INT4, INT4), "int4"),
        (compressed(INT4, {**INT4, "group_size": 32}), "unknown"),
        (compressed(INT4) | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "unknown"),
        (compressed(INT4) | {"transform_config": {"config_groups": {"u": {}}}}, "unknown"),
        (compressed(INT4, targets=["re:.*mtp.*"]), "unknown"),
        (compressed(INT4, format="marlin-24"), "unknown"),
        (without(compressed(INT4), "format"), "unknown"),
        (compressed({**INT4, "group_size": None}), "unknown"),
        (compressed({**INT4, "symmetric": False}), "int4"),
        (compressed({**INT4, "dynamic": True}), "unknown"),
        (compressed({**FP8, "symmetric": False}, **FP8_GROUP), "unknown"),
        (compressed(FP8, **FP8_GROUP), "fp8_channel"),
        (compressed(FP8, **FP8_GROUP, output_activations=FP8_INPUTS), "unknown"),
        (compressed({**FP8, "strategy": "group", "group_size": 96}, **FP8_GROUP), "unknown"),
        (compressed(FP4, format="nvfp4-pack-quantized"), "nvfp4"),
        (compressed(FP4, format="mixed-precision"), "unknown"),
        (compressed({**FP4, "group_size": 32}, format="nvfp4-pack-quantized"), "unknown"),
        (compressed(MXFP4, format="mxfp4-pack-quantized"), "mxfp4"),
    ],
)
def test_a_config_says_how_weights_are_stored(stated: dict[str, Any], form: str) -> None:
    report = lint({**LLAMA, "quantization_config": stated}, gpu="a100")
    assert {row.storage for row in report.products} == {form, "none"}
    assert report.quantisation == form


def test_a_quantisation_in_the_text_part_is_read() -> None:
    text = {**LLAMA, "quantization_config": FP8_BLOCK}
    whole = {"model_type": "llava", "text_config": text}
    assert lint(whole, gpu="h100").quantisation == "fp8_block"
    assert storage_of_config(whole).form == "fp8_block"


@pytest.mark.parametrize("form, since", [("bnb", "0.28"), ("gguf-q4_k", "0.24")])
def test_vllm_needs_plug_ins_for_formats_that_left_its_core(form: str, since: str) -> None:
    report = lint(LLAMA, gpu="l40s", quantisation=form)
    assert report.outcome == "refused"
    assert "plug-in vllm-" in report.findings[0].reason
    assert lint(LLAMA, engine="vllm==0.23", gpu="l40s", quantisation=form).outcome == "ok"


@pytest.mark.parametrize("gpu", ["a100", "l40s"])
def test_vllm_pads_fp8_blocks_on_marlin(gpu: str) -> None:
    """As vLLM 0.33.0 itself does: 3024 rows become 3072."""
    config = {**LLAMA, "hidden_size": 3024, "head_dim": 128, "intermediate_size": 9216}
    row = {r.product: r for r in lint(config, gpu=gpu, quantisation="fp8-block").products}["o"]
    assert row.outcome == "falls back"
    assert row.pads_to["N"] == 3072


MIXED = {**LLAMA, "head_dim": 96}
FP8_CACHE = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True}


@pytest.mark.parametrize(
    "engine, gpu, config, stated, outcome",
    [
        ("sglang", "h100", QWEN, GPTQ, "refused"),
        ("sglang", "h100", {**QWEN, "dtype": "float16"}, GPTQ, "ok"),
        ("sglang", "h100", QWEN, compressed(INT4, input_activations=FP8_INPUTS), "unknown"),
        (
            *("sglang", "h100", QWEN),
            *(compressed({**INT4, "group_size": 64}, input_activations=FP8_INPUTS), "wrong"),
        ),
    ],
)
def test_what_threads_told_of_formats(
    engine: str, gpu: str, config: dict[str, Any], stated: dict[str, Any], outcome: str
) -> None:
    config = {**config, "quantization_config": stated}
    assert lint(config, engine=engine, gpu=gpu).outcome == outcome


@pytest.mark.parametrize(
    "gpu, scheme, outcome",
    [
        ("a100", FP8_CACHE, "falls back"),
        ("h100", FP8_CACHE, "ok"),
        ("a100", {"num_bits": 4}, "unknown"),
        ("h100", FP8_CACHE | {"strategy": "channel"}, "unknown"),
        ("h100", FP8_CACHE | {"strategy": "attn_head"}, "unknown"),
        ("h100", FP8_CACHE | {"symmetric": False}, "unknown"),
        ("h100", without(FP8_CACHE, "symmetric"), "unknown"),
    ],
)
def test_a_cache_in_fp8_has_one_scale_a_tensor(
    gpu: str, scheme: dict[str, Any], outcome: str
) -> None:
    stated = compressed(INT4) | {"kv_cache_scheme": scheme}
    assert lint({**MIXED, "quantization_config": stated}, gpu=gpu).outcome == outcome


@pytest.mark.parametrize("order, outcome", [("static", "ok"), ("group", "refused")])
def test_vllm_dropped_the_order_of_activations(order: str, outcome: str) -> None:
    stated = compressed({**INT4, "actorder": order})
    assert lint({**LLAMA, "quantization_config": stated}, gpu="h100").outcome == outcome


def test_experts_beside_the_mlp_are_not_ignored_with_it() -> None:
    """Gemma 4's: layers.0.experts is no part of layers.0.mlp."""
    published = json.loads((CONFIGS / "gemma-4-26b-a4b-nvfp4.json").read_text(encoding="utf-8"))
    rows = {row.product: row for row in lint(published, gpu="h100").products}
    assert (rows["moe.w2"].storage, rows["moe.w2"].outcome) == ("nvfp4", "falls back")
    assert rows["dense.down"].storage == "none"


@pytest.mark.parametrize("is_dynamic, outcome", [(True, "falls back"), (False, "ok")])
def test_triton_alone_takes_experts_without_a_gate_and_dynamic_inputs(
    is_dynamic: bool, outcome: str
) -> None:
    """vllm-project/vllm#34356: 0.2 tokens a second."""
    inputs = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": is_dynamic}
    weights = {"num_bits": 8, "type": "float", "strategy": "tensor"}
    stated = compressed(weights, format="float-quantized", input_activations=inputs)
    config = {**MODELS["Nemotron-3-Nano-30B-A3B"], "quantization_config": stated}
    assert outcomes(lint(config, gpu="h200"))["moe.w2"] == outcome


@pytest.mark.parametrize("quantisation, tp", [("fp8-block", 3), ("fp8-block", 8), ("nvfp4", 3)])
def test_remedies_hold_when_judged_anew(quantisation: str, tp: int) -> None:
    setting = {"gpu": "b200", "quantisation": quantisation}
    report = lint(QWEN, tp=tp, **setting)
    assert report.remedies
    for remedy in report.remedies:
        config: dict[str, Any] = QWEN
        for name, size in remedy.config.items():
            config = with_field(config, name, size)
        again = lint(config, **remedy.ranks, **setting)
        assert again.outcome == remedy.outcome
        assert OUTCOMES.index(again.outcome) < OUTCOMES.index(report.outcome)
        assert all(outcomes(again)[name] == "ok" for name in remedy.mended)


def test_sizes_that_the_gpu_serves_badly_are_not_ok() -> None:
    report = lint({**LLAMA, "intermediate_size": 14338}, gpu="h100")
    assert report.outcome == "ok"
    assert not report.ok
    assert {row.product for row in report.misaligned} >= {"down", "gate_up"}


@pytest.mark.parametrize("field", ["dtype", "torch_dtype"])
def test_plain_weights_are_judged_in_the_type_that_the_config_names(field: str) -> None:
    """Rows of 2056 numbers are of 16 bytes' multiple in 2 bytes, and of 32 in 4."""

    def alignments(dtype: str) -> list[str]:
        config = {**LLAMA, "hidden_size": 1028, "intermediate_size": 2750, field: dtype}
        return [row.alignment for row in lint(config, gpu="h100").products]

    assert alignments("bfloat16") == alignments("float16") == alignments("")
    assert alignments("float32") != alignments("bfloat16")


ODD_VALUES = [[[]], 1.5, "x", True, {"a": 1}]


@pytest.mark.parametrize("odd", ODD_VALUES, ids=map(str, ODD_VALUES))
@pytest.mark.parametrize(
    "stated",
    [
        GPTQ | {"dynamic": {}},
        FP8_BLOCK | {"ignored_layers": []},
        {"quant_method": "modelopt", "quantization": {"quant_algo": "FP8"}},
        compressed(),
        compressed({}),
    ],
    ids=["gptq", "fp8", "modelopt", "no groups", "groups"],
)
def test_a_quantisation_of_odd_values_is_read_or_refused(stated: Any, odd: Any) -> None:
    """By the one kind of error that a command line prints as a line."""
    answered = 0
    for key in stated:
        for quantisation in ({**stated, key: odd}, {**stated, key: {"a": odd}}):
            try:
                answered += bool(lint({**LLAMA, "quantization_config": quantisation}).products)
            except ConfigError as error:
                answered += 1
                assert len(str(error).splitlines()) == 1
    assert answered == 2 * len(stated)


def test_text_json_and_python_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**QWEN, "quantization_config": FP8_BLOCK}))
    out = tmp_path / "lint.sarif"
    report = lint(tmp_path, engine="vllm==0.28", gpu="h100", tp=8, sarif=out)
    as_json = json.loads(json.dumps(plain(report)))
    assert as_json["summary"] == report.summary == "refused"
    assert report.summary in section_of(report).headline
    log = json.loads(out.read_text(encoding="utf-8"))
    assert log == sarif(report)
    results = log["runs"][0]["results"]
    assert {result["level"] for result in results} == {"error"}
    assert len(results) == len(report.findings)


@pytest.mark.parametrize(
    "options", [{"engine": "ollamas"}, {"gpu": "h1000"}, {"quantisation": "fp7"}, {"version": "x"}]
)
def test_what_is_not_known_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        lint(LLAMA, **options)
    with pytest.raises(ConfigError):
        lint(LLAMA, ep=2)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_row_has_a_source_and_a_known_relation(engine: str) -> None:
    for row in load_engine(engine).requirements:
        assert row.source
        assert row.outcome in OUTCOMES
        assert row.relation in ("multiple", "at_least", "at_most", "one_of", "never", "scales")
        assert row.bounds or row.alternatives


def test_lint_imports_nothing_heavy() -> None:
    code = (
        "import sys, gacprof; gacprof.lint({'model_type': 'llama', 'hidden_size': 4096}); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'numpy', 'pandas', 'scipy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
