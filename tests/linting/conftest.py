"""Configs of published models, as far as lint reads them."""

import pytest

QWEN3_235B = {
    "model_type": "qwen3_moe", "hidden_size": 4096, "moe_intermediate_size": 1536,
    "intermediate_size": 12288, "num_attention_heads": 64, "num_key_value_heads": 4,
    "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8, "vocab_size": 151936,
    "num_hidden_layers": 94, "decoder_sparse_step": 1, "mlp_only_layers": [],
}  # fmt: skip
LLAMA_8B = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "num_hidden_layers": 32,
}  # fmt: skip


@pytest.fixture
def qwen():
    return dict(QWEN3_235B)


@pytest.fixture
def llama():
    return dict(LLAMA_8B)
