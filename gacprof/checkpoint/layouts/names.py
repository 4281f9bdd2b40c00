"""What a tensor's name says: layer, role, expert. Structure decides layouts, names decide roles.

The table covers the linear layers of the decoder and encoder families in transformers
(Llama, Mistral, Qwen, Gemma, Phi, OPT, GPT-2, GPT-NeoX, Falcon, Bloom, BERT) and Mixtral's
and Qwen's experts.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from functools import lru_cache

_NAMES = {
    "q": "q_proj wq query SelfAttention.q",
    "k": "k_proj wk key SelfAttention.k",
    "v": "v_proj wv value SelfAttention.v",
    "qkv": "qkv_proj c_attn query_key_value Wqkv",
    "o": "o_proj out_proj wo attn.c_proj attention.dense self_attention.dense self_attn.dense",
    "gate": "gate_proj w1 linear_gate DenseReluDense.wi_0",
    "up": "up_proj w3 v1 fc1 fc_in c_fc dense_h_to_4h intermediate.dense"
    " DenseReluDense.wi DenseReluDense.wi_1",
    "gate_up": "gate_up_proj input_linear experts.fc1",
    "down": "down_proj w2 output_linear experts.fc2 fc2 fc_out dense_4h_to_h mlp.c_proj"
    " output.dense DenseReluDense.wo",
    "expert_router": "block_sparse_moe.gate mlp.gate mlp.router feed_forward.router",
    "head": "lm_head embed_out score",
}
"""Names of modules by role: the last part, or the last two where one alone says too little."""

_ROLES = {name: role for role, names in _NAMES.items() for name in names.split()}

_EMBEDDINGS = {
    *("embed_tokens", "embed_positions", "embed_in", "tok_embeddings", "word_embeddings"),
    *("position_embeddings", "token_type_embeddings", "wte", "wpe", "shared"),
    "relative_attention_bias",
}

_LAYER = re.compile(r"(?:^|\.)(?:layers|layer|h|blocks|block)\.(\d{1,6})(?=\.|$)")
_EXPERT = re.compile(
    r"\.experts\.(\d{1,6}|mlp)\.|\.experts\.(gate_up_proj|down_proj|fc[12])$"
    r"|\.block_sparse_moe\.(input|output)_linear$"
)
"""One of many experts, or a tensor that holds them all."""


_CACHE = 1 << 17
"""Names whose meaning is kept: more than the largest models have modules."""


@lru_cache(_CACHE)
def layer_of(name: str) -> int | None:
    """The layer's index in ``name``, or None outside the layers."""
    found = _LAYER.search(name)
    return int(found.group(1)) if found else None


@lru_cache(_CACHE)
def role_of(module: str) -> str:
    """The role of a linear layer by its module name; ``other`` where the name says nothing."""
    parts = module.split(".")
    role = _ROLES.get(".".join(parts[-2:])) or _ROLES.get(parts[-1], "other")
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


def parent_of(module: str) -> str:
    return module.rpartition(".")[0]


def names_below(paths: Collection[str], names: Iterable[str]) -> dict[str, list[str]]:
    """For each of the module ``paths`` that has any, the names below it; all are below ``""``."""
    below: dict[str, list[str]] = {path: [] for path in paths}
    above: dict[str, list[list[str]]] = {}  # the lists of each module and of its parents

    def lists_above(path: str) -> list[list[str]]:
        if path not in above:
            own = [below[path]] if path in below else []
            above[path] = own + (lists_above(parent_of(path)) if path else [])
        return above[path]

    for name in names if paths else ():
        for found in lists_above(parent_of(name)):
            found.append(name)
    return {path: found for path, found in below.items() if found}
