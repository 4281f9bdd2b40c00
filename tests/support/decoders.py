"""Small random decoders on disk: any family, widths, heads and ranks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

HIDDEN = 64
HEAD_DIM = 16
VOCABULARY = 288


def write_decoder(
    folder: Path,
    *,
    family: str = "llama",
    widths: Sequence[int] = (96, 96),
    heads: Sequence[tuple[int, int]] = (),
    ranks: Mapping[str, int | list[int]] | None = None,
    tied: bool = False,
    factors: tuple[str, str] = ("inner", "outer"),
    sharded: bool = False,
    **config: object,
) -> Path:
    """Write a folder with a model of one layer for each of ``widths``.

    ``heads`` are (query, key-value) by layer, ``ranks`` by module (a list: groups); modules that
    are not among ``ranks`` are dense. ``sharded``: a file a layer.
    """
    folder.mkdir(parents=True)
    rng = np.random.default_rng(3)
    tensors: dict[str, np.ndarray] = {}

    def normal(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * 0.15).astype(np.float32)

    def linear(module: str, n_out: int, n_in: int, bias: bool = False) -> None:
        rank = (ranks or {}).get(module)
        if rank is None:
            tensors[f"{module}.weight"] = normal(n_out, n_in)
            if bias:
                tensors[f"{module}.bias"] = normal(n_out)
            return
        groups = rank if isinstance(rank, list) else [rank]
        tensors[f"{module}.{factors[0]}.weight"] = normal(sum(groups), n_in)
        for i, group_rank in enumerate(groups):
            outer = f"{module}.{factors[1]}" + (f".{i}" if isinstance(rank, list) else "")
            tensors[f"{outer}.weight"] = normal(n_out // len(groups), group_rank)
            if bias:
                tensors[f"{outer}.bias"] = normal(n_out // len(groups))

    tensors["model.embed_tokens.weight"] = normal(VOCABULARY, HIDDEN)
    for i, (width, (q, kv)) in enumerate(zip(widths, heads or [(4, 2)] * len(widths), strict=True)):
        layer = f"model.layers.{i}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{layer}.{norm}.weight"] = 1 + normal(HIDDEN)
        for part, count in (("q", q), ("k", kv), ("v", kv)):
            linear(f"{layer}.self_attn.{part}_proj", count * HEAD_DIM, HIDDEN, family == "qwen2")
            if family == "qwen3" and part in "qk":
                tensors[f"{layer}.self_attn.{part}_norm.weight"] = 1 + normal(HEAD_DIM)
        linear(f"{layer}.self_attn.o_proj", HIDDEN, q * HEAD_DIM)
        linear(f"{layer}.mlp.gate_proj", width, HIDDEN)
        linear(f"{layer}.mlp.up_proj", width, HIDDEN)
        linear(f"{layer}.mlp.down_proj", HIDDEN, width)
    tensors["model.norm.weight"] = 1 + normal(HIDDEN)
    if not tied:
        linear("lm_head", VOCABULARY, HIDDEN)
    if sharded:
        _save_shards(folder, tensors)
    else:
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    settings: dict[str, object] = {
        "model_type": family,
        "hidden_size": HIDDEN,
        "intermediate_size": max(widths),
        "num_hidden_layers": len(widths),
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": HEAD_DIM,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": tied,
        "bos_token_id": 257,
        "eos_token_id": 257,
    }
    if family == "mistral":
        settings["sliding_window"] = None
    (folder / "config.json").write_text(json.dumps(settings | config))
    return folder


def _save_shards(folder: Path, tensors: Mapping[str, np.ndarray]) -> None:
    places = {}
    for name in tensors:
        layer = name.split(".")[2] if ".layers." in name else "ends"
        places[name] = f"model-{layer}.safetensors"
    for file in set(places.values()):
        shard = {name: tensor for name, tensor in tensors.items() if places[name] == file}
        save_file(shard, folder / file, {"format": "pt"})
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


DECODERS: dict[str, dict[str, object]] = {
    "llama": {},
    "qwen2 widths 90,77": {"family": "qwen2", "widths": (90, 77)},
    "qwen3 tied": {"family": "qwen3", "tied": True},
    "mistral sharded": {"family": "mistral", "sharded": True},
    "pairs": {
        "ranks": {
            "model.layers.0.self_attn.q_proj": 23,
            "model.layers.0.mlp.gate_proj": 37,
            "model.layers.1.mlp.down_proj": 41,
        }
    },
    "groups": {
        "ranks": {
            "model.layers.0.self_attn.k_proj": [9, 13],
            "model.layers.1.self_attn.v_proj": [11, 7],
        },
        "factors": ("VT", "U"),
    },
    "heads by layer": {"heads": ((4, 2), (2, 1))},
}
"""What :func:`write_decoder` is given for ``made/decoder/NAME`` of the frozen answers."""
