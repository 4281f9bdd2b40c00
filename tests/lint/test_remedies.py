"""What makes a quantised checkpoint load on several ranks: padding, finer groups, whole experts."""

from __future__ import annotations

from typing import Any

import pytest

from gacprof.lint.deployment import deploy
from gacprof.lint.judge import overall
from gacprof.lint.lint import lint
from gacprof.lint.multiples import is_of_mlp, joint_multiple
from gacprof.lint.remedies import Remedy, with_field

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}
COMPRESSED = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": INT4}},
}


def dense(hidden: int, width: int, layers: int, heads: int, kv_heads: int) -> dict[str, Any]:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": hidden,
        "intermediate_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": 152064,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "torch_dtype": "float16",
    }


def experts(hidden: int, width: int, heads: int) -> dict[str, Any]:
    return {
        **dense(hidden, 6144, 48, heads, 4),
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "moe_intermediate_size": width,
        "head_dim": 128,
        "num_experts": 128,
        "num_experts_per_tok": 8,
    }


QWEN_72B = dense(8192, 29568, 80, 64, 8)
QWEN_30B_A3B = experts(2048, 768, 32)


def remedies_of(config: dict[str, Any], stated: dict[str, Any], tp: int) -> list[Remedy]:
    stored = {**config, "quantization_config": stated}
    return list(lint(stored, gpu="h100", tp=tp).remedies)


@pytest.mark.parametrize("stated", [AWQ, GPTQ, COMPRESSED])
def test_a_tile_of_gate_and_up_together_asks_half_of_it_of_the_width(stated: Any) -> None:
    """Qwen2.5-72B's publishers quantised it anew at 29696: QwenLM/Qwen3-VL#231."""
    (padding,) = [r for r in remedies_of(QWEN_72B, stated, tp=8) if r.kind == "size"]
    assert padding.config == {"intermediate_size": 29696}
    assert padding.outcome == "ok" and padding.tps == (2, 4, 8)
    assert padding.bytes == pytest.approx(0.003, abs=0.0005)
    assert "for:vllm:tp8" in padding.command


def test_stored_quantised_weights_are_not_cut_and_others_may_be() -> None:
    stored = [r.config for r in remedies_of(QWEN_72B, AWQ, tp=2) if r.kind == "size"]
    assert stored == [{"intermediate_size": 29696}]
    plain = lint({**QWEN_72B, "intermediate_size": 29569}, gpu="h100", tp=2).remedies
    sizes = [r.config["intermediate_size"] for r in plain if r.kind == "size"]
    assert sizes == [29568, 29570]


@pytest.mark.parametrize("stated, growth", [(GPTQ, 0.035), (COMPRESSED, 0.028)])
def test_experts_are_dealt_out_whole_before_they_are_refined_or_padded(
    stated: Any, growth: float
) -> None:
    """Qwen3-30B-A3B on 4 ranks: 192 inputs of an expert are a group and a half."""
    best = [r for r in remedies_of(QWEN_30B_A3B, stated, tp=4) if r.kind != "tp"]
    whole, refined, padded = best
    assert {r.outcome for r in best} == {"ok"}
    assert (whole.ranks, whole.bytes) == ({"tp": 4, "ep": 4}, 0.0)
    assert refined.config == {"group_size": 64}
    assert refined.bytes == pytest.approx(growth, abs=0.001)
    assert padded.config == {"moe_intermediate_size": 1024}
    assert padded.bytes == pytest.approx(0.3, abs=0.01)


def test_finer_groups_hold_when_judged_anew() -> None:
    (finer,) = [r for r in remedies_of(QWEN_72B, GPTQ, tp=2) if r.kind == "groups"]
    config = with_field({**QWEN_72B, "quantization_config": GPTQ}, "group_size", 64)
    assert finer.config == {"group_size": 64} and finer.tps == (2,)
    assert deploy(config).storage.group == 64
    assert lint(config, gpu="h100", tp=2).outcome == finer.outcome == "ok"


def test_groups_of_permuted_inputs_are_not_split() -> None:
    permuted = {**GPTQ, "desc_act": True}
    assert lint({**QWEN_72B, "quantization_config": permuted}, tp=2, version="0.32.0").outcome == (
        "refused"
    )
    old = lint({**QWEN_72B, "quantization_config": permuted}, tp=2, version="0.22.0", gpu="a100")
    assert old.remedies and "groups" not in {remedy.kind for remedy in old.remedies}


def test_experts_and_shared_experts_are_padded_together() -> None:
    """Qwen3-Next's kind: both are 512 wide, 64 on each of 8 ranks, half a block."""
    config = {
        **experts(2048, 512, 16),
        "model_type": "qwen2_moe",
        "architectures": ["Qwen2MoeForCausalLM"],
        "shared_expert_intermediate_size": 512,
        "num_key_value_heads": 8,
    }
    (padding,) = [r for r in remedies_of(config, FP8, tp=8) if r.command]
    assert padding.config == {
        "moe_intermediate_size": 1024,
        "shared_expert_intermediate_size": 1024,
    }


# Model, storage, and the smallest widths that its MLPs (or experts) can have on 2, 4 and 8 ranks
SMALLEST = {
    "Qwen2.5-72B int4": (QWEN_72B, GPTQ, (29696, 29696, 29696)),
    "Qwen2.5-72B fp8": (QWEN_72B, FP8, (29696, 29696, 29696)),
    "EXAONE-4.0-32B fp8": (dense(5120, 27392, 64, 40, 8), FP8, (27392, 27648, 27648)),
    "Qwen1.5-14B int4": (dense(5120, 13696, 40, 40, 40), GPTQ, (13824, 13824, 14336)),
    "LLaMA-7B int4": (dense(4096, 11008, 32, 32, 32), AWQ, (11008, 11264, 11264)),
    "Llama-2-13B int4": (dense(5120, 13824, 40, 40, 40), AWQ, (13824, 13824, 14336)),
    "Qwen2.5-7B int4": (dense(3584, 18944, 28, 28, 4), GPTQ, (18944, 18944, 19456)),
    "GLM-4.5-Air fp8": (experts(4096, 1408, 96), FP8, (1536, 1536, 2048)),
    "Qwen3-30B-A3B fp8": (QWEN_30B_A3B, FP8, (768, 1024, 1024)),
    "Qwen3-30B-A3B int4": (QWEN_30B_A3B, COMPRESSED, (768, 1024, 1024)),
    "Qwen3-235B-A22B fp8": (experts(4096, 1536, 64), FP8, (1536, 1536, 2048)),
    "640 fp8": (experts(2048, 640, 32), FP8, (768, 1024, 1024)),
}


@pytest.mark.parametrize("model", SMALLEST)
def test_the_smallest_widths_that_ranks_share_in_whole_groups(model: str) -> None:
    config, stated, widths = SMALLEST[model]
    width, role = config["intermediate_size"], "mlp"
    if "moe_intermediate_size" in config:
        width, role = config["moe_intermediate_size"], "expert"
    smallest = []
    for tp in (2, 4, 8):
        deployment = deploy({**config, "quantization_config": stated}, gpu="h100", tp=tp)
        of_width = [j for j in deployment.judgements() if is_of_mlp(j, role)]
        multiple = joint_multiple(of_width).multiple
        smallest.append(-(-width // multiple) * multiple)
    assert tuple(smallest) == widths


@pytest.mark.parametrize(
    "stated, group, width, tp, outcome",
    [
        (GPTQ, 64, 192, 1, "ok"),
        (GPTQ, 64, 192, 2, "wrong"),
        (GPTQ, 64, 256, 2, "ok"),
        (GPTQ, 32, 192, 2, "ok"),
        (GPTQ, 32, 352, 4, "refused"),
        (GPTQ, 32, 384, 4, "ok"),
        (AWQ, 64, 320, 2, "wrong"),
        (AWQ, 64, 384, 2, "ok"),
        (AWQ, 64, 384, 4, "wrong"),
        (AWQ, 64, 512, 4, "ok"),
        (AWQ, 32, 320, 4, "refused"),
    ],
)
def test_what_vllms_cpu_build_did_with_groups_that_ranks_split(
    stated: dict[str, Any], group: int, width: int, tp: int, outcome: str
) -> None:
    """Run with 0.32.0: by ranks of tiny models, against the same model on one rank."""
    config = {**dense(256, width, 1, 8, 8), "quantization_config": {**stated, "group_size": group}}
    rows = {row.product: row for row in lint(config, gpu="cpu", tp=tp).products}
    assert rows["down"].outcome == outcome


def test_a_finding_says_how_many_groups_a_rank_has() -> None:
    report = lint({**QWEN_72B, "quantization_config": AWQ}, gpu="h100", tp=8)
    (down,) = [row for row in report.products if row.product == "down"]
    assert str(3696 / 128) in down.reason


@pytest.mark.parametrize(
    "stated",
    [
        {"quant_method": "nvfp4"},
        {"quant_method": "modelopt", "quant_algo": "NVFP4_AWQ"},
        {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0, "modules_to_not_convert": []},
        {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": False},
    ],
)
def test_a_method_that_the_engine_does_not_load_is_refused(stated: dict[str, Any]) -> None:
    """Asked of vLLM 0.32 itself; SGLang has some of them."""
    assert lint(QWEN_72B | {"quantization_config": stated}, gpu="h100", tp=4).outcome == "refused"


COMMANDS = [
    ("vllm", 1, "vllm serve MODEL --tensor-parallel-size 4 --enable-expert-parallel"),
    ("vllm", 2, "vllm serve MODEL --tensor-parallel-size 4 --data-parallel-size 2"),
    ("sglang", 1, "python -m sglang.launch_server --model-path MODEL --tp-size 4 --ep-size 4"),
]


@pytest.mark.parametrize("engine, dp, command", COMMANDS)
def test_a_remedy_is_the_command_of_the_server(engine: str, dp: int, command: str) -> None:
    config = {**QWEN_30B_A3B, "quantization_config": FP8}
    report = lint(config, engine=engine, gpu="h100", tp=4, dp=dp)
    whole = report.remedies[0]
    assert whole.kind == "ep" and whole.change.startswith(command)


@pytest.mark.parametrize("tp, dp", [(4, 1), (4, 2), (8, 2)])
def test_vllm_shares_out_experts_to_all_ranks(tp: int, dp: int) -> None:
    """Its EP is TP × DP: a remedy with another would not start."""
    config = {**QWEN_30B_A3B, "quantization_config": FP8}
    remedies = lint(config, gpu="h100", tp=tp, dp=dp).remedies
    (whole,) = [remedy for remedy in remedies if remedy.kind == "ep"]
    assert whole.ranks == {"tp": tp, "ep": tp * dp}
    again = deploy(config, gpu="h100", dp=dp, **whole.ranks)
    assert overall(again.judgements()) == whole.outcome == "ok"


def test_what_a_server_can_do_comes_before_another_checkpoint() -> None:
    report = lint({**QWEN_30B_A3B, "quantization_config": FP8}, gpu="h100", tp=4)
    of_serving = [remedy.is_of_serving for remedy in report.remedies]
    assert {*of_serving} == {True, False}
    assert of_serving == sorted(of_serving, reverse=True)


def test_ranks_that_cannot_start_are_set_right() -> None:
    remedies = lint(QWEN_30B_A3B, gpu="h200", tp=4, ep=8).remedies
    assert [remedy.ranks for remedy in remedies if remedy.kind == "ep"] == [
        {"tp": 4, "ep": 4},
        {"tp": 4, "ep": 1},
    ]
