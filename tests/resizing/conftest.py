"""Checkpoints made for the tests: ASVD's names, any ranks, any number of shards."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file


@pytest.fixture
def make_factored(tmp_path):
    """A folder with one factored q_proj per layer: ``ranks`` say how many layers there are."""

    def make(ranks, *, shards=1, name="source"):
        rng = np.random.default_rng(7)
        folder = tmp_path / name
        folder.mkdir()
        tensors = {"model.norm.weight": np.ones(24, np.float32)}
        for layer, rank in enumerate(ranks):
            module = f"model.layers.{layer}.self_attn.q_proj"
            outer = rng.standard_normal((24, rank)) * 0.8 ** np.arange(rank)
            inner = rng.standard_normal((rank, 24))
            tensors[f"{module}.ALinear.weight"] = outer.astype(np.float32)
            tensors[f"{module}.ALinear.bias"] = rng.standard_normal(24).astype(np.float32)
            tensors[f"{module}.BLinear.weight"] = inner.astype(np.float32)
        _save(folder, tensors, shards)
        config = {
            "model_type": "llama", "hidden_size": 24, "num_attention_heads": 4,
            "an_unknown_key": {"kept": True},
            "truncation_ranks": {
                f"model.layers.{i}.self_attn.q_proj": rank for i, rank in enumerate(ranks)
            },
        }  # fmt: skip
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "tokenizer.json").write_text('{"version": "1.0"}')
        return folder

    return make


def _save(folder, tensors, shards):
    metadata = {"format": "pt", "made_by": "a test"}
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata)
        return
    weight_map = {}
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: tensors[name] for name in sorted(tensors)[i::shards]}
        save_file(part, folder / file, metadata)
        weight_map |= dict.fromkeys(part, file)
    index = {
        "metadata": {"total_size": sum(t.nbytes for t in tensors.values()), "note": "kept"},
        "weight_map": weight_map,
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
