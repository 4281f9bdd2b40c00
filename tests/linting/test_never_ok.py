"""What no verdict may call ok: configs that cannot exist, GPUs and versions that are too old."""

import pytest

from gacprof.core.errors import LintError
from gacprof.linting import fix, lint
from gacprof.linting.design import requested_sizes
from gacprof.linting.formats import headline

FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}


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
    remedies = lint(config | {"num_key_value_heads": 12}).remedies
    offered = [one.config for one in remedies if one.kind == "size"]
    assert offered == [{"num_key_value_heads": 10}, {"num_key_value_heads": 20}]


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
     ("t4", "bf16", "unknown"), ("a100", "fp8-block", "ok"), ("h100", "fp8-block", "ok")],
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


MAMBA2 = {
    "model_type": "mamba2", "hidden_size": 4096, "num_heads": 128, "head_dim": 64, "n_groups": 8,
    "state_size": 128, "expand": 2, "num_hidden_layers": 64, "vocab_size": 32768,
}  # fmt: skip


def test_a_mamba2_model_has_mixers_and_no_attention():
    names = {row.name for row in lint(MAMBA2, tp=8).products}
    assert {"mamba.in_proj", "mamba.out_proj", "mamba groups"} <= names
    assert not names & {"attention heads", "qkv", "o", "gate_up", "down"}
    assert lint(MAMBA2, tp=8).outcome == "ok"
    assert lint(MAMBA2, tp=16).outcome == "refused"


def test_mamba1_is_not_judged():
    config = {"model_type": "falcon_mamba", "hidden_size": 4096, "intermediate_size": 8192,
              "state_size": 16, "num_hidden_layers": 64, "vocab_size": 65024}  # fmt: skip
    found = lint(config, gpu="h100")
    assert found.outcome == "unknown"
    assert "qkv" not in {row.name for row in found.products}


ATTENTION, MLP = ["re:.*self_attn.*"], ["re:.*mlp.*"]
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
BLOCK = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}


def mixed(*groups):
    message = {f"group_{n}": {"targets": t, "weights": w} for n, (t, w) in enumerate(groups)}
    return {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": message}}


def test_each_group_of_a_mixed_checkpoint_has_its_own_modules(llama):
    config = llama | mixed((ATTENTION, INT4), (MLP, BLOCK))
    quant = {row.name: row.quant for row in lint(config, gpu="h100").products}
    assert (quant["qkv"], quant["down"]) == ("int4", "fp8_block")
    refused = lint(config | {"intermediate_size": 11008}, gpu="h100", tp=4)
    assert refused.outcome == "refused"  # 11008 / 4 is no multiple of 128
    found = lint(llama | mixed((ATTENTION, INT4), (["re:.*gate_proj"], BLOCK)), gpu="h100")
    outcomes = {row.name: row.outcome for row in found.products}
    assert outcomes["gate_up"] == outcomes["down"] == found.outcome == "unknown"


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_remedies_have_the_best_tier_that_is_reachable(llama, tp):
    config = llama | {"intermediate_size": 8806}
    found = lint(config, gpu="h100", tp=tp)
    assert {one.tier for one in found.remedies if one.kind == "size"} == {1}
    assert all((one.tier or 1) == 1 for one in found.remedies)
    made, _ = fix(config, gpu="h100", tp=tp)
    fixed = lint(made, gpu="h100", tp=tp)
    assert (fixed.outcome, fixed.misaligned) == ("ok", [])


def test_a_fixed_config_keeps_its_parameters():
    config = {"model_type": "qwen3_moe", "hidden_size": 2048, "moe_intermediate_size": 96,
              "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
              "num_experts": 8, "vocab_size": 32768, "num_hidden_layers": 2}  # fmt: skip
    with pytest.raises(LintError, match="--ep"):
        fix(config, gpu="h100", tp=32, quant="fp8-block")


@pytest.mark.parametrize("heads", ["heads=32,kv=5", "heads=33", "heads=32,kv=64"])
def test_a_design_of_impossible_heads_is_refused(heads):
    with pytest.raises(LintError):
        requested_sizes(f"hidden=4096,layers=32,{heads},vocab=151552")


@pytest.mark.parametrize("width", [767, 768])
def test_experts_that_no_rule_covers_are_not_ok_on_a_gpu(width):
    """A dense width of 767 is misaligned on an H100: of experts nothing is known of it."""
    sizes = {"hidden_size": 2048, "moe_intermediate_size": width, "num_attention_heads": 16,
             "num_key_value_heads": 4, "head_dim": 128, "num_experts": 8, "vocab_size": 32768,
             "num_experts_per_tok": 2, "num_hidden_layers": 2}  # fmt: skip
    config = {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"]} | sizes
    found = lint(config, gpu="h100")
    experts = [row.outcome for row in found.products if row.role.startswith("expert_")]
    assert set(experts) == ({"ok"} if width % 8 == 0 else {"unknown"})
    assert ("moe.w1/w3, moe.w2 not judged on h100" in headline(found)) == (width == 767)
    assert "not judged" not in headline(lint(config))  # the engine takes it


@pytest.mark.parametrize(
    ("sizes", "engine", "outcome"),
    [({"head_dim": 107}, "vllm", "refused"), ({"head_dim": 107}, "transformers", "refused"),
     ({"head_dim": 107}, "llama.cpp", "unknown"), ({"head_dim": 100}, "vllm", "unknown"),
     ({"head_dim": 100}, "sglang", "unknown"), ({"head_dim": 104}, "vllm", "ok"),
     ({"head_dim": 107, "partial_rotary_factor": 0.5}, "vllm", "unknown")],
)  # fmt: skip
def test_a_head_dim_that_is_no_multiple_of_8_is_not_ok(llama, sizes, engine, outcome):
    found = lint(llama | sizes, engine=engine, gpu="h100")
    assert found.outcome == outcome
    assert all(one.outcome == "ok" for one in found.remedies)


QWEN_72B = {
    "model_type": "qwen2", "hidden_size": 8192, "intermediate_size": 29568,
    "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 152064,
    "num_hidden_layers": 80,
}  # fmt: skip


def test_scales_of_a_fused_shard_are_not_read_beyond_the_checkpoints():
    """29568 outputs are 231 blocks; four ranks of 58 and eight of 29 read 232."""
    for tp in (2, 4, 8):
        found = lint(QWEN_72B, gpu="h100", tp=tp, quant="fp8-block")
        assert {r.name: r.outcome for r in found.products}["gate_up"] == "refused"
    even = lint(QWEN_72B | {"intermediate_size": 10944}, gpu="h100", tp=2, quant="fp8-block")
    assert {r.name: r.outcome for r in even.products}["gate_up"] == "wrong"  # 2 · 43 of 86 blocks


@pytest.mark.parametrize("gpu", ["l40s", "h100", "b200", "a100"])
def test_inputs_that_end_within_a_block_are_not_known_to_be_served(llama, gpu):
    plain = llama | {"model_type": "nemotron", "intermediate_size": 9280}
    found = lint(plain, gpu=gpu, quant="fp8-block")
    assert {r.name: r.outcome for r in found.products}["down"] == found.outcome == "unknown"
    odd = lint(plain | {"vocab_size": 128250}, gpu=gpu, quant="fp8-block")
    assert odd.findings and odd.outcome == "unknown"  # padding is not the worst that may be


def test_one_mechanism_has_one_verdict():
    """Marlin's product of weights alone, where a GPU has no FP8 or FP4."""
    for quant in ("fp8", "fp8-block", "nvfp4"):
        assert lint(QWEN_72B, gpu="a100", quant=quant).outcome == "ok"


def test_no_remedy_is_wrong_or_refused_and_what_is_ok_comes_first(llama):
    found = lint(QWEN_72B, gpu="h100", tp=4, quant="gptq-g128", engine="sglang")
    assert found.remedies[0].option == "--tp 1" and found.remedies[0].outcome == "ok"
    assert all(one.outcome in ("ok", "pads", "falls_back") for one in found.remedies)
    heads = {"num_attention_heads": 28, "num_key_value_heads": 4, "hidden_size": 3584}
    found = lint(llama | heads, gpu="h100", tp=8)
    sized = [one.config for one in found.remedies if one.kind == "size"]
    assert sized and all(one["head_dim"] == 128 for one in sized)  # not 3584 / 32


def test_what_an_option_breaks_least_is_named():
    found = lint(QWEN_72B, gpu="h100", tp=4, quant="nvfp4")
    (down,) = found.findings
    assert "7392 is no multiple of 64" in down.why


def test_a_vocabulary_that_ranks_cannot_share_has_no_tier(llama):
    found = lint(llama | {"vocab_size": 128000}, gpu="h100", tp=3)
    rows = {row.name: row for row in found.products}
    assert rows["lm_head"].tier is None
    assert rows["down"].why == "14336 is not divisible by 3"


@pytest.mark.parametrize(("group", "outcome"), [(99, "refused"), (256, "unknown"), (64, "ok")])
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_group_sizes_that_kernels_do_not_have(llama, group, outcome, engine):
    found = lint(llama, gpu="h100", quant=f"gptq-g{group}", engine=engine)
    assert found.outcome == outcome


def test_zero_points_count():
    """Llama-3-70B in AWQ: 4 bits, and 16 and 4 a group of 128."""
    llama = QWEN_72B | {"intermediate_size": 28672, "vocab_size": 128256, "model_type": "llama"}
    held = lint(llama, gpu="h100", quant="awq-g128").tp_table[0].bytes_per_rank
    assert held / 2**30 == pytest.approx(37.0, abs=0.1)
