"""What the engines' code and threads say, case by case: families, engines, versions, GPUs and
quantisations that the published cases leave out. Sources stand in the engines' tables.
"""

from __future__ import annotations

import pytest

from gacprof.linting import lint

LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
}  # fmt: skip
QWEN_235B = {
    "model_type": "qwen3_moe", "hidden_size": 4096, "moe_intermediate_size": 1536,
    "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128,
    "vocab_size": 151936,
}  # fmt: skip
NEMOTRON_NANO = {
    "model_type": "nemotron_h", "hidden_size": 2688, "moe_intermediate_size": 1856,
    "moe_shared_expert_intermediate_size": 3712, "num_attention_heads": 32,
    "num_key_value_heads": 2, "head_dim": 128, "mamba_num_heads": 64, "mamba_head_dim": 64,
    "n_groups": 8, "ssm_state_size": 128, "n_routed_experts": 128, "vocab_size": 131072,
    "hybrid_override_pattern": "MEMEM*EMEMEM*E",
}  # fmt: skip
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432,
    "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1,
    "num_attention_heads": 128, "num_key_value_heads": 128, "q_lora_rank": 1536,
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "vocab_size": 129280, "first_k_dense_replace": 3,
}  # fmt: skip
QWEN_NEXT = {
    "model_type": "qwen3_next", "hidden_size": 2048, "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512, "num_attention_heads": 16, "num_key_value_heads": 2,
    "head_dim": 256, "num_experts": 512, "vocab_size": 151936, "linear_num_key_heads": 16,
    "linear_key_head_dim": 128, "linear_num_value_heads": 32, "linear_value_head_dim": 128,
}  # fmt: skip
DEEPSEEK_V4 = {
    "model_type": "deepseek_v4", "moe_intermediate_size": 3072, "n_shared_experts": 1,
    "num_attention_heads": 128, "n_routed_experts": 384, "o_groups": 16, "vocab_size": 129280,
}  # fmt: skip
GPT_OSS = {
    "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "num_local_experts": 128,
    "vocab_size": 201088,
}  # fmt: skip
GEMMA4_MOE = {
    "model_type": "gemma4", "hidden_size": 2816, "intermediate_size": 2112,
    "moe_intermediate_size": 704, "num_experts": 128, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 256, "vocab_size": 262144,
}  # fmt: skip
GLM_AIR = {
    "model_type": "glm4_moe", "hidden_size": 4096, "intermediate_size": 10944,
    "moe_intermediate_size": 1408, "n_shared_experts": 1, "num_attention_heads": 96,
    "num_key_value_heads": 8, "head_dim": 128, "n_routed_experts": 128, "vocab_size": 151552,
}  # fmt: skip
QWEN_72B = {
    "model_type": "qwen2", "hidden_size": 8192, "intermediate_size": 29568,
    "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 152064,
}  # fmt: skip

CASES = {
    # vLLM, FP8 in blocks: experts through the versions and GPUs
    "235b tp8 0.28": (QWEN_235B, "vllm==0.28 h100 tp8 fp8_block", "refused", "moe.w1/w3", 192),
    "235b tp8 0.29": (QWEN_235B, "vllm==0.29 h100 tp8 fp8_block", "falls_back", "moe.w2", 192),
    "235b tp8 a100": (QWEN_235B, "vllm a100 tp8 fp8_block", "refused", "moe.w2", 192),
    "235b tp8 ct": (QWEN_235B, "vllm h100 tp8 ct_fp8_block", "refused", "moe.w1/w3", 192),
    "235b tp8 sglang": (QWEN_235B, "sglang h100 tp8 fp8_block", "refused", "moe.w1/w3", 192),
    "235b tp8 sglang ep": (QWEN_235B, "sglang h100 tp8 ep fp8_block", "ok", "moe.w2", 1536),
    "235b tp8 trt": (QWEN_235B, "trt-llm h100 tp8 fp8_block", "refused", "moe.w1/w3", 192),
    "235b tp8 trt ep": (QWEN_235B, "trt-llm h100 tp8 ep fp8_block", "ok", "moe.w1/w3", 1536),
    "235b tp8 mi300x": (QWEN_235B, "sglang mi300x tp8 fp8_block", "pads", "moe.w2", 192),
    "235b tp3": (QWEN_235B, "vllm h100 tp3 bf16", "refused", "attention heads", 64),
    "v3 tp8": (DEEPSEEK_V3, "vllm h200 tp8 fp8_block", "ok", "mla.q_b", 3072),
    "v3 tp32 shared": (DEEPSEEK_V3, "vllm h200 tp32 fp8_block", "refused", "shared.down", 64),
    "v3 tp16 sglang": (DEEPSEEK_V3, "sglang h200 tp16 fp8_block", "ok", "mla.q_a", 1536),
    "v3 sm120": (DEEPSEEK_V3, "vllm rtxpro6000 tp8 fp8_block", "refused", "mla.qkv_a", 2112),
    "v4 tp16": (DEEPSEEK_V4, "vllm==0.20 h100 tp16 ep fp8_block", "refused", "shared.down", 192),
    "v4 tp16 pads": (DEEPSEEK_V4, "vllm h100 tp16 ep fp8_block", "pads", "shared.down", 192),
    "v4 groups": (DEEPSEEK_V4, "vllm h100 tp32 ep bf16", "refused", "output groups", 16),
    "next tp4": (QWEN_NEXT, "vllm h100 tp4 fp8_block", "ok", "shared.down", 128),
    "next tp8": (QWEN_NEXT, "vllm h100 tp8 fp8_block", "refused", "shared.down", 64),
    "next tp8 dp": (QWEN_NEXT, "vllm h100 tp2 fp8_block", "ok", "gdn.in_proj_qkvz.k", 1024),
    # fused shards: kv heads of 64
    "kv shard of 64": (
        LLAMA | {"head_dim": 64, "num_attention_heads": 64},
        "vllm h100 tp8 fp8_block", "refused", "qkv.k", 64,
    ),
    "down at tp1 falls back": (
        LLAMA | {"model_type": "nemotron", "intermediate_size": 9280},
        "vllm h100 tp1 fp8_block", "falls_back", "down", 9280,
    ),
    # FP8 with one scale a tensor or channel
    "fp8 tp8 0.21": (
        GLM_AIR,
        "vllm==0.21 h100 tp8 fp8_per_channel", "falls_back", "dense.down", 1368,
    ),
    "fp8 a100 0.22": (GLM_AIR, "vllm==0.22 a100 tp8 fp8_per_tensor", "refused", "dense.down", 1368),
    "fp8 a100 0.32": (GLM_AIR, "vllm a100 tp8 fp8_per_tensor", "pads", "dense.down", 1368),
    "fp8 nemotron": (NEMOTRON_NANO, "vllm h100 tp8 fp8", "refused", "moe.w2", 232),
    # NVFP4
    "nvfp4 gemma4 tp4": (GEMMA4_MOE, "vllm b200 tp4 nvfp4", "pads", "moe.w1/w3", 176),
    "nvfp4 gemma4 tp4 old": (GEMMA4_MOE, "vllm==0.23 b200 tp4 nvfp4", "refused", "moe.w1/w3", 176),
    "nvfp4 gemma4 5090": (GEMMA4_MOE, "vllm rtx5090 tp4 nvfp4", "refused", "moe.w1/w3", 176),
    "nvfp4 gemma4 sglang": (GEMMA4_MOE, "sglang rtx5090 tp4 nvfp4", "refused", "moe.w1/w3", 176),
    "nvfp4 gemma4 sglang b200": (GEMMA4_MOE, "sglang b200 tp4 nvfp4", "pads", "moe.w2", 176),
    "nvfp4 dense b200": (GLM_AIR, "vllm b200 tp2 ep nvfp4", "ok", "dense.down", 5472),
    "nvfp4 dense b200 tp4": (GLM_AIR, "vllm b200 tp4 ep nvfp4", "pads", "dense.down", 2736),
    "nvfp4 dense tp8": (GLM_AIR, "vllm b200 tp8 ep nvfp4", "refused", "dense.down", 1368),
    "nvfp4 ct": (GLM_AIR, "vllm b200 tp8 ep ct_nvfp4", "wrong", "dense.down", 1368),
    "nvfp4 trt": (NEMOTRON_NANO, "trt-llm b200 tp8 nvfp4", "refused", "moe.w2", 232),
    # MXFP4, MXFP8
    "oss b200": (GPT_OSS, "vllm b200 tp1 mxfp4", "pads", "moe.w2", 2880),
    "oss h100 ep": (GPT_OSS, "vllm h100 tp8 ep mxfp4", "ok", "moe.w2", 2880),
    "oss 5090": (GPT_OSS, "vllm rtx5090 tp1 mxfp4", "pads", "moe.w1/w3", 2880),
    "mxfp8 moe": (GLM_AIR, "vllm b200 tp8 mxfp8", "refused", "moe.w2", 176),
    "mxfp8 small": (
        LLAMA | {"num_attention_heads": 24, "num_key_value_heads": 8, "hidden_size": 768,
                 "head_dim": 32, "intermediate_size": 2048},
        "vllm b200 tp8 mxfp8", "falls_back", "o", 96,
    ),
    # INT8 and 4 bits
    "int8 bad": (GLM_AIR, "vllm a100 tp8 w8a8_int8", "falls_back", "dense.down", 1368),
    "awq straddles": (QWEN_72B, "vllm a100 tp4 awq_int4_g128", "refused", "down", 7392),
    "awq sglang straddles": (QWEN_72B, "sglang a100 tp4 awq_int4_g128", "refused", "down", 7392),
    "gptq straddles": (QWEN_72B, "vllm h100 tp4 gptq_int4_g128", "wrong", "down", 7392),
    "gptq straddles, old": (QWEN_72B, "vllm==0.9 h100 tp4 gptq_int4_g128", "refused", "down", 7392),
    "gptq sglang": (QWEN_72B, "sglang h100 tp4 gptq_int4_g128", "refused", "down", 7392),
    "ct straddles": (QWEN_72B, "vllm h100 tp4 ct_int4_g128", "refused", "down", 7392),
    "ct g32 marlin": (QWEN_72B, "vllm a100 tp4 ct_int4_g32", "pads", "down", 7392),
    "ct g32 marlin old": (QWEN_72B, "vllm==0.22 a100 tp4 ct_int4_g32", "refused", "down", 7392),
    "ct g32 sglang": (QWEN_72B, "sglang a100 tp4 ct_int4_g32", "refused", "down", 7392),
    "awq g32 0.10": (QWEN_72B, "vllm==0.10 a100 tp4 awq_int4_g32", "falls_back", "down", 7392),
    "awq g32 sglang": (QWEN_72B, "sglang a100 tp4 awq_int4_g32", "falls_back", "down", 7392),
    "int4 moe 235b": (QWEN_235B, "vllm a100 tp8 gptq_int4_g128", "falls_back", "moe.w2", 192),
    "int4 moe sglang": (QWEN_235B, "sglang a100 tp8 awq_int4_g128", "falls_back", "moe.w2", 192),
    # bitsandbytes
    "bnb tp1": (LLAMA, "vllm a100 tp1 bnb_nf4", "ok", "down", 14336),
    "bnb tp2": (LLAMA, "vllm a100 tp2 bnb_nf4", "refused", "every quantised linear", 2),
    # GGUF
    "q4_0 odd": (
        LLAMA | {"intermediate_size": 11000},
        "llama.cpp any tp1 gguf_q4_0", "refused", "down", 11000,
    ),
    "q4_k to f16": (
        LLAMA | {"intermediate_size": 11000},
        "llama.cpp any tp1 q4_k_m", "falls_back", "down", 11000,
    ),
    "q6_k": (GPT_OSS, "llama.cpp any tp1 gguf_q6_K", "falls_back", "moe.w2", 2880),
    "iq4_xs": (GPT_OSS, "llama.cpp any tp1 gguf_iq4_xs", "falls_back", "moe.w1/w3", 2880),
    "nvfp4 gguf": (NEMOTRON_NANO, "llama.cpp any tp1 gguf_nvfp4", "ok", "moe.w2", 1856),
    "ranks are no matter": (GPT_OSS, "llama.cpp any tp7 gguf_q8_0", "ok", "moe.w2", 2880),
    # splitting
    "vocab 6": (
        GLM_AIR | {"num_key_value_heads": 96},
        "vllm h100 tp6 ep bf16", "refused", "embedding", 151552,
    ),
    "vocab sglang": ({"vocab_size": 151552}, "sglang h100 tp6 bf16", "pads", "embedding", 151552),
    "vocab sglang, old": (
        {"vocab_size": 151552},
        "sglang==0.5.20 h100 tp6 bf16", "refused", "embedding", 151552,
    ),
    "odd vocab": ({"vocab_size": 32001}, "vllm h100 tp1 bf16", "pads", "embedding", 32001),
    "kv transformers": (LLAMA, "transformers h100 tp16 bf16", "refused", "kv heads", 8),
    "uneven transformers": (
        LLAMA | {"intermediate_size": 14338},
        "transformers h100 tp4 bf16", "ok", "down", 3585,
    ),
    "uneven vllm": (
        LLAMA | {"intermediate_size": 14338},
        "vllm h100 tp4 bf16", "refused", "down", 14338,
    ),
    "kv trt": (
        {"num_attention_heads": 40, "num_key_value_heads": 10, "hidden_size": 5120},
        "trt-llm h100 tp4 bf16", "ok", "qkv.k", 384,
    ),
    "fp8 transformers a100": (LLAMA, "transformers a100 tp1 fp8", "falls_back", "down", 14336),
    "mamba groups": (
        NEMOTRON_NANO | {"num_key_value_heads": 16},
        "vllm h100 tp16 ep bf16", "refused", "mamba groups", 8,
    ),
    "experts sglang": (
        QWEN_235B | {"num_experts": 100},
        "sglang h100 tp8 ep bf16", "refused", "experts", 100,
    ),
    "experts vllm": (
        QWEN_235B | {"num_experts": 100},
        "vllm h100 tp8 ep bf16", "ok", "moe.w2", 1536,
    ),
    "bf16 experts b200": (GEMMA4_MOE, "vllm b200 tp4 bf16", "pads", "moe.w2", 176),
    "bf16 experts h100": (GEMMA4_MOE, "vllm h100 tp4 bf16", "ok", "moe.w2", 176),
    "next tp1024": (
        QWEN_NEXT | {"num_experts": 8, "num_key_value_heads": 16},
        "vllm h100 tp16 ep bf16", "refused", "experts", 8,
    ),
    "qwen vision": (
        {"vision_config": {"num_heads": 16}},
        "vllm h100 tp3 bf16", "refused", "vision attention heads", 16,
    ),
}  # fmt: skip


def asked(text: str) -> dict:
    engine, gpu, tp, *rest = text.split()
    return {
        "engine": engine, "gpu": gpu, "tp": int(tp.removeprefix("tp")), "ep": "ep" in rest,
        "quant": rest[-1],
    }  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_engine_does_with_it_what_its_code_says(name):
    config, text, outcome, product, size = CASES[name]
    found = lint(config, **asked(text))
    rows = [row for row in found.products if row.name == product]
    assert rows, [row.name for row in found.products]
    assert (found.outcome, rows[0].outcome) == (outcome, outcome), [
        (row.name, row.outcome, row.local, row.why) for row in found.findings
    ]
    assert size in {*rows[0].local.values(), rows[0].size}


def test_on_an_open_gpu_only_what_happens_on_all_is_said():
    """Refused on Ampere, Triton elsewhere: at least a fallback. Padded on some only: open."""
    found = lint(QWEN_235B, **asked("vllm any tp8 fp8_block"))
    row = next(row for row in found.products if row.name == "moe.w2")
    assert (row.outcome, found.outcome) == ("falls_back", "falls_back")
    assert "refused on sm75" in row.why
    row = next(
        r for r in lint(GEMMA4_MOE, **asked("vllm any tp4 bf16")).products if r.name == "moe.w2"
    )
    assert row.outcome == "unknown"
    assert "pads on sm100" in row.why


def test_what_was_read_for_nvidia_is_not_said_of_amd():
    found = lint(QWEN_235B, **asked("vllm mi300x tp8 fp8_block"))
    row = next(row for row in found.products if row.name == "moe.w2")
    assert row.outcome == "unknown"
    assert "mi300x was not read" in row.why
    assert lint(QWEN_235B, **asked("vllm mi300x tp3 fp8_block")).outcome == "refused"
