"""What a tensor's name says: layer, role, expert. Structure decides layouts, names decide roles.

The table covers the linear layers of the decoder and encoder families in transformers
(Llama, Mistral, Qwen, Gemma, Phi, OPT, GPT-2, GPT-NeoX, Falcon, Bloom, BERT) and Mixtral's
and Qwen's experts.
"""

from __future__ import annotations

import re

_BY_LAST = {
    "q_proj": "q",
    "k_proj": "k",
    "v_proj": "v",
    "o_proj": "o",
    "out_proj": "o",
    "wq": "q",
    "wk": "k",
    "wv": "v",
    "wo": "o",
    "query": "q",
    "key": "k",
    "value": "v",
    "qkv_proj": "qkv",
    "c_attn": "qkv",
    "query_key_value": "qkv",
    "Wqkv": "qkv",
    "gate_proj": "gate",
    "up_proj": "up",
    "down_proj": "down",
    "gate_up_proj": "gate_up",
    "w1": "gate",
    "w3": "up",
    "w2": "down",
    "fc1": "up",
    "fc2": "down",
    "fc_in": "up",
    "fc_out": "down",
    "c_fc": "up",
    "dense_h_to_4h": "up",
    "dense_4h_to_h": "down",
    "lm_head": "head",
    "embed_out": "head",
    "score": "head",
}

_BY_TWO = {
    "attn.c_proj": "o",
    "mlp.c_proj": "down",
    "attention.dense": "o",
    "self_attention.dense": "o",
    "self_attn.dense": "o",
    "output.dense": "down",
    "intermediate.dense": "up",
    "block_sparse_moe.gate": "expert_router",
    "mlp.gate": "expert_router",
    "mlp.router": "expert_router",
    "feed_forward.router": "expert_router",
    "DenseReluDense.wi": "up",
    "DenseReluDense.wi_0": "gate",
    "DenseReluDense.wi_1": "up",
    "DenseReluDense.wo": "down",
    "SelfAttention.q": "q",
    "SelfAttention.k": "k",
    "SelfAttention.v": "v",
}

_EMBEDDINGS = (
    "embed_tokens",
    "embed_positions",
    "wte",
    "wpe",
    "word_embeddings",
    "position_embeddings",
    "token_type_embeddings",
    "tok_embeddings",
    "embed_in",
    "shared",
    "relative_attention_bias",
)

_LAYER = re.compile(r"(?:^|\.)(?:layers|layer|h|blocks|block)\.(\d{1,6})(?=\.|$)")
_EXPERT = re.compile(r"\.experts\.(\d{1,6})\.")


def layer_of(name: str) -> int | None:
    """The layer's index in ``name``, or None outside the layers."""
    found = _LAYER.search(name)
    return int(found.group(1)) if found else None


def role_of(module: str) -> str:
    """The role of a linear layer by its module name; ``other`` where the name tells nothing."""
    parts = module.split(".")
    role = _BY_TWO.get(".".join(parts[-2:])) or _BY_LAST.get(parts[-1], "other")
    if parts[-3:-1] == ["attention", "output"] and parts[-1] == "dense":
        role = "o"  # BERT: attention.output.dense beside output.dense
    return f"expert_{role}" if _EXPERT.search(module) and role != "other" else role


def is_embedding(module: str) -> bool:
    """Whether a two-dimensional weight is a table to look up rather than a factor."""
    return module.rsplit(".", 1)[-1] in _EMBEDDINGS


def is_expert(module: str) -> bool:
    return _EXPERT.search(module) is not None


def may_be_conv1d(module: str) -> bool:
    """Whether ``module`` has a name that GPT-2's Conv1D bears, which keeps [in, out]
    (transformers/pytorch_utils.py). Starcoder2 uses the same names for nn.Linear."""
    return module.rsplit(".", 1)[-1] in ("c_attn", "c_proj", "c_fc")


def in_tower(module: str) -> bool:
    """Whether ``module`` belongs to the vision or audio part of a multimodal model."""
    return any(part in module for part in ("vision", "visual", "audio"))


def parent_of(module: str) -> str:
    return module.rpartition(".")[0]
