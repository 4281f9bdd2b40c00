"""Small random decoders on disk: any family, widths, heads and ranks, with a tokenizer or not."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

HIDDEN, HEAD_DIM, VOCABULARY = 64, 16, 288


def write_decoder(
    folder: Path,
    *,
    family: str = "llama",
    widths: Sequence[int] = (96, 96),
    heads: Sequence[tuple[int, int]] | None = None,
    ranks: Mapping[str, int | list[int]] | None = None,
    tied: bool = False,
    tokenizer: str = "",
    dtype: type = np.float32,
    hidden: int = HIDDEN,
    factors: tuple[str, str] = ("inner", "outer"),
    sharded: bool = False,
    **config: object,
) -> Path:
    """A folder. ``heads`` are (query, key-value) per layer, ``ranks`` by module (a list: groups);
    what is not among ``ranks`` is dense. ``sharded``: a file a layer."""
    folder.mkdir()
    heads = heads or [(4, 2)] * len(widths)
    rng = np.random.default_rng(3)
    tensors: dict[str, np.ndarray] = {}

    def normal(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * 0.15).astype(dtype)

    def linear(module: str, n_out: int, n_in: int, bias: bool) -> None:
        rank = (ranks or {}).get(module)
        if rank is None:
            tensors[f"{module}.weight"] = normal(n_out, n_in)
            if bias:
                tensors[f"{module}.bias"] = normal(n_out)
        else:
            groups = rank if isinstance(rank, list) else [rank]
            tensors[f"{module}.{factors[0]}.weight"] = normal(sum(groups), n_in)
            for i, r in enumerate(groups):
                outer = f"{module}.{factors[1]}" + (f".{i}" if isinstance(rank, list) else "")
                tensors[f"{outer}.weight"] = normal(n_out // len(groups), r)
                if bias:
                    tensors[f"{outer}.bias"] = normal(n_out // len(groups))

    tensors["model.embed_tokens.weight"] = normal(VOCABULARY, hidden)
    for i, (width, (q, kv)) in enumerate(zip(widths, heads, strict=True)):
        layer, biased = f"model.layers.{i}", family == "qwen2"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{layer}.{norm}.weight"] = 1 + normal(hidden)
        for part, n in (("q", q), ("k", kv), ("v", kv)):
            linear(f"{layer}.self_attn.{part}_proj", n * HEAD_DIM, hidden, biased)
            if family == "qwen3" and part in "qk":
                tensors[f"{layer}.self_attn.{part}_norm.weight"] = 1 + normal(HEAD_DIM)
        linear(f"{layer}.self_attn.o_proj", hidden, q * HEAD_DIM, False)
        linear(f"{layer}.mlp.gate_proj", width, hidden, False)
        linear(f"{layer}.mlp.up_proj", width, hidden, False)
        linear(f"{layer}.mlp.down_proj", hidden, width, False)
    tensors["model.norm.weight"] = 1 + normal(hidden)
    if not tied:
        linear("lm_head", VOCABULARY, hidden, False)
    if sharded:
        _save_shards(folder, tensors)
    else:
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    written = {
        "model_type": family,
        "hidden_size": hidden,
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
        written["sliding_window"] = None
    (folder / "config.json").write_text(json.dumps(written | config))
    if tokenizer:
        _TOKENIZERS[tokenizer](folder)
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


def modules_of(layers: int) -> list[str]:
    """The weights of such layers that can be factored."""
    parts = [f"self_attn.{p}_proj" for p in "qkvo"] + [
        f"mlp.{p}_proj" for p in ("gate", "up", "down")
    ]
    return [f"model.layers.{i}.{part}" for i in range(layers) for part in parts]


def _write_bytes(folder: Path) -> None:
    """A byte-level BPE with one merge, split as SmolLM's: digits one by one, then GPT-2's words."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*alphabet, "th"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("t", "h")]))
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), words])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def _write_sentencepiece(folder: Path) -> None:
    """A BPE as Llama 2's: a leading space, bytes for unknown characters, a token to begin with."""
    from tokenizers import AddedToken, Tokenizer, models, normalizers, processors

    special = ["<unk>", "<s>", "</s>"]
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("i", "n"), ("t", "h"), ("c", "a")]
    tokens = [*special, *(f"<0x{i:02X}>" for i in range(256)), *"▁theincas"]
    tokens += ["".join(pair) for pair in merges]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    model = models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    tokenizer = Tokenizer(model)
    spaces = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    tokenizer.normalizer = normalizers.Sequence(spaces)
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in special])
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


_TOKENIZERS = {"bytes": _write_bytes, "sentencepiece": _write_sentencepiece}
