"""The demo's checkpoint: a small Llama whose projections are factored at misaligned ranks.

The shapes are a Llama's; the ranks are real irregularity; the weights are random, since
latency does not need trained ones.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from gacprof.core.files import write_json, write_tensors

LAYERS = 4
HIDDEN = 1024
INTERMEDIATE = 2816
HEADS = 8
VOCABULARY = 2048

PUBLISHED_RANKS = (
    # layers 16 … 22 of Llama-3-8B-Instruct, each q, k, v, o
    (92, 109, 90, 100),
    (102, 94, 98, 103),
    (84, 103, 89, 100),
    (86, 101, 94, 102),
    (82, 112, 99, 101),
    (103, 113, 102, 103),
    (91, 113, 107, 105),
)
"""Ranks that magnitude scores allot at a retain ratio of 0.8: read from figure 2 of
J. Xin et al., arXiv 2604.09595 (CC BY 4.0). 28 values, one for each projection below."""

PROJECTIONS = (
    ("self_attn.q_proj", HIDDEN, HIDDEN),
    ("self_attn.k_proj", HIDDEN, HIDDEN),
    ("self_attn.v_proj", HIDDEN, HIDDEN),
    ("self_attn.o_proj", HIDDEN, HIDDEN),
    ("mlp.gate_proj", INTERMEDIATE, HIDDEN),
    ("mlp.up_proj", INTERMEDIATE, HIDDEN),
    ("mlp.down_proj", HIDDEN, INTERMEDIATE),
)
"""(name, out features, in features) of a Llama layer's projections."""


def ranks() -> dict[str, int]:
    """Module name → rank, the published ranks dealt out in order."""
    dealt = [rank for layer in PUBLISHED_RANKS for rank in layer]
    names = [f"model.layers.{i}.{name}" for i in range(LAYERS) for name, _, _ in PROJECTIONS]
    return dict(zip(names, dealt, strict=True))


def write_demo_checkpoint(folder: Path, seed: int = 0, dtype: str = "float32") -> Path:
    """Write the checkpoint in ASVD's layout as safetensors. ``folder`` must not exist."""
    import torch

    folder.mkdir(parents=True)
    draw = np.random.default_rng(seed)
    stored = getattr(torch, dtype)
    tensors: dict[str, torch.Tensor] = {}

    def random(name: str, *shape: int) -> None:
        values = draw.standard_normal(shape, dtype=np.float32) / np.float32(np.sqrt(shape[-1]))
        tensors[name] = torch.from_numpy(values).to(stored)

    random("model.embed_tokens.weight", VOCABULARY, HIDDEN)
    random("lm_head.weight", VOCABULARY, HIDDEN)
    tensors["model.norm.weight"] = torch.ones(HIDDEN, dtype=stored)
    chosen = ranks()
    for i in range(LAYERS):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{i}.{norm}.weight"] = torch.ones(HIDDEN, dtype=stored)
        for name, wide, deep in PROJECTIONS:
            module = f"model.layers.{i}.{name}"
            random(f"{module}.ALinear.weight", wide, chosen[module])
            random(f"{module}.BLinear.weight", chosen[module], deep)
    write_tensors(folder / "model.safetensors", tensors, {"format": "pt"})
    write_json(folder / "config.json", _config(chosen, dtype))
    return folder


def _config(chosen: dict[str, int], dtype: str) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HIDDEN // HEADS,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": dtype,
        "truncation_ranks": chosen,
    }


def described() -> str:
    """One sentence for the page, so that nobody takes the model for more than it is."""
    misaligned = sum(rank % 8 != 0 for rank in ranks().values())
    return json.dumps(
        f"Llama-shaped, hidden {HIDDEN}, {LAYERS} layers, every projection a factor pair; "
        f"{misaligned} of {len(ranks())} ranks are no multiple of 8 (ranks as published for "
        "Llama-3-8B, arXiv 2604.09595); weights are random and seeded, nothing is trained"
    )[1:-1]
