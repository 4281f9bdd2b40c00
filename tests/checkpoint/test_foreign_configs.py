"""A config comes from strangers: what of it may reach the library that builds the model."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_making import checkpoint
from test_load import CONFIGS, SIZES, logits_of, saved

from gacprof.checkpoint import scan as gacprof_scan
from gacprof.checkpoint.config import passed
from gacprof.core.errors import CheckpointError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from gacprof.checkpoint.load import load_model  # noqa: E402

HOSTILE = {
    "attn_implementation": "evil-org/x",
    "_attn_implementation": "evil-org/x",
    "_attn_implementation_internal": "evil-org/x",
    "experts_implementation": "evil-org/x",
    "_experts_implementation": "evil-org/x",
    "use_kernels": True,
    "kernel_config": {"kernel_mapping": {"RMSNorm": "evil-org/x:RMSNorm"}},
    "hub_kernels": "evil-org/x",
    "auto_map": {"AutoModelForCausalLM": "evil-org/x--modeling.Model"},
    "quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True},
    "transformers_weights": "../../elsewhere.safetensors",
    "name_or_path": "evil-org/x",
    "_name_or_path": "evil-org/x",
    "base_model_name_or_path": "evil-org/x",
    "backbone": "evil_resnet",
    "hidden_act": "evil-org/x",
    "rope_scaling": {"rope_type": "evil-org/x"},
    "return_dict": False,
    "output_attentions": True,
    "torchscript": True,
    "to_dict": 5,
    "get_text_config": 5,
    "anything": ["https://example.org"],
}


BUILDABLE = {
    k: v
    for k, v in HOSTILE.items()
    if k not in ("hidden_act", "rope_scaling", "quantization_config")
}


def test_nothing_that_names_code_passes() -> None:
    config = passed(SIZES | HOSTILE | {"rope_theta": 5e5}, transformers.LlamaConfig)
    assert config == SIZES | {"use_kernels": True, "rope_theta": 5e5}
    inner = {"text_config": SIZES | HOSTILE, "vision_config": HOSTILE, "model_type": "gemma3"}
    config = passed(inner, transformers.Gemma3Config)
    assert "evil" not in json.dumps(config) and config["text_config"]["hidden_size"] == 64


HONEST: dict[str, Any] = CONFIGS | {
    "llama 3": lambda: transformers.LlamaConfig(
        **SIZES, head_dim=16, tie_word_embeddings=True, rope_theta=5e5,
        rope_scaling={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                      "high_freq_factor": 4.0, "original_max_position_embeddings": 32},
    ),
    "yarn": lambda: transformers.LlamaConfig(
        **SIZES, rope_scaling={"rope_type": "yarn", "factor": 2.0,
                               "original_max_position_embeddings": 32},
    ),
    "qwen3": lambda: transformers.Qwen3Config(**SIZES, head_dim=16),
    "qwen2 sliding": lambda: transformers.Qwen2Config(
        **SIZES, use_sliding_window=True, sliding_window=8, max_window_layers=1
    ),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **SIZES, head_dim=16, sliding_window=8, layer_types=["sliding_attention", "full_attention"]
    ),
    "opt": lambda: transformers.OPTConfig(
        hidden_size=64, ffn_dim=96, num_hidden_layers=2, num_attention_heads=4, vocab_size=128,
        max_position_embeddings=64, word_embed_proj_dim=64, activation_function="relu",
    ),
    "neox": lambda: transformers.GPTNeoXConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        vocab_size=128, rotary_pct=0.5, use_parallel_residual=False,
    ),
    "gptj": lambda: transformers.GPTJConfig(
        n_embd=64, n_layer=2, n_head=4, vocab_size=128, rotary_dim=8, n_positions=64,
    ),
    "falcon": lambda: transformers.FalconConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=128,
        new_decoder_architecture=True, num_kv_heads=2,
    ),
    "bloom": lambda: transformers.BloomConfig(
        hidden_size=64, n_layer=2, n_head=4, vocab_size=128,
    ),
    "phi": lambda: transformers.PhiConfig(**SIZES, partial_rotary_factor=0.5),
    "stablelm": lambda: transformers.StableLmConfig(**SIZES, partial_rotary_factor=0.25),
    "granite": lambda: transformers.GraniteConfig(
        **SIZES, logits_scaling=3.0, residual_multiplier=0.5, embedding_multiplier=2.0
    ),
    "cohere": lambda: transformers.CohereConfig(**SIZES, logit_scale=0.5, pad_token_id=0),
    "starcoder2": lambda: transformers.Starcoder2Config(**SIZES),
    "olmo2": lambda: transformers.Olmo2Config(**SIZES, pad_token_id=0),
    "qwen3 experts": lambda: transformers.Qwen3MoeConfig(
        **SIZES, head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32,
        decoder_sparse_step=2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", HONEST)
def test_honest_configs_build_the_model_that_they_describe(kind: str, tmp_path: Path) -> None:
    theirs = saved(tmp_path / "model", HONEST[kind]())
    ids = torch.randint(128, (2, 12), generator=torch.Generator().manual_seed(1))
    ours = load_model(tmp_path / "model")
    np.testing.assert_allclose(logits_of(ours, ids), logits_of(theirs, ids), atol=1e-5)


def test_a_config_fetches_no_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Experts go through transformers' own loading too. Asked without us, it does fetch."""
    asked: list[Any] = []

    def fetch(*names: Any, **more: Any) -> None:
        asked.append(names)
        raise RuntimeError("a kernel was asked for")

    monkeypatch.setattr("transformers.modeling_utils.lazy_import_flash_attention", fetch)
    saved(tmp_path / "model", CONFIGS["experts"]())
    file = tmp_path / "model" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | BUILDABLE))
    model = load_model(tmp_path / "model")
    assert model.config._attn_implementation == "sdpa" and not asked
    model.config._attn_implementation = "evil-org/x"
    with pytest.raises(RuntimeError, match="a kernel was asked for"):
        transformers.AutoModelForCausalLM.from_config(model.config)
    assert asked == [("evil-org/x",)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_hidden_layers": 10_000_000}, "num_hidden_layers 10000000, the file has 21 tensors"),
        ({"num_hidden_layers": 10**30}, "disagree"),
        ({"num_local_experts": 10**9, "model_type": "mixtral"}, "disagree"),
        ({"num_hidden_layers": 900}, "no weights for|more than"),
        ({"model_type": "gpt2", "n_positions": 10**6}, "positions"),
        ({"max_position_embeddings": 10**12}, "positions"),
    ],
)
def test_a_model_that_its_tensors_cannot_fill_is_not_built(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    saved(tmp_path / "model", transformers.LlamaConfig(**SIZES))
    file = tmp_path / "model" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(CheckpointError, match=message) as refused:
        load_model(tmp_path / "model")
    assert "\n" not in str(refused.value)


def test_quantised_weights_are_refused_without_a_config_that_says_so(tmp_path: Path) -> None:
    shapes = {"model.layers.0.mlp.up_proj.weight": ("int8", (8, 8))}
    with pytest.raises(CheckpointError, match="is quantised"):
        load_model(checkpoint(tmp_path, shapes, {"model_type": "llama"}))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rope_theta": float("nan")}, "rope_theta is not finite"),
        ({"rope_parameters": {"rope_theta": float("inf")}}, "rope_theta is not finite"),
        ({"rope_theta": 0.0}, "rope_theta is not above 0"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps is not finite"),
        ({"vocab_size": 4_000_000}, "vocab_size 4000000, the file has an embedding of 128 rows"),
        ({"vocab_size": 10**12}, "config and tensors disagree"),
        ({"hidden_size": 10**30}, "hidden_size 10000000000000000000…, the file has no side"),
        ({"vocab_size": -5}, "vocab_size -5"),
        ({"num_attention_heads": 10**30}, "config and tensors disagree"),
    ],
)
def test_a_config_that_no_model_can_be_built_of_is_refused(
    change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    import gacprof

    folder = tmp_path / "model"
    saved(folder, transformers.LlamaConfig(**SIZES))
    config = json.loads((folder / "config.json").read_text())
    if "rope_theta" in change:
        config.pop("rope_parameters", None)
    (folder / "config.json").write_text(json.dumps(config | change))
    verbs = {
        "load": lambda: load_model(folder),
        "gguf": lambda: gacprof.export(folder, "gguf", tmp_path / "out", check="tensors"),
        "folder": lambda: gacprof.export(folder, "vllm", tmp_path / "out", check="tensors"),
        "plain": lambda: gacprof.export(folder, "uniform", tmp_path / "out", check="tensors"),
    }
    for verb, call in verbs.items():
        with pytest.raises(CheckpointError) as refused:
            call()
        assert said in str(refused.value) and len(str(refused.value)) < 500, verb
    assert not (tmp_path / "out").exists()


def test_infinity_is_a_value_where_the_model_type_has_it() -> None:
    from gacprof.checkpoint.config import refuse_not_finite

    refuse_not_finite({"model_type": "mamba2", "time_step_limit": [0.0, float("inf")]}, "m")


def test_a_config_that_is_no_file_is_refused_and_not_ignored(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, {"lm_head.weight": (8, 8)}, {})
    for make in (os.mkfifo, lambda path: path.symlink_to("nowhere")):
        (folder / "config.json").unlink()
        make(folder / "config.json")
        with pytest.raises(CheckpointError, match=r"config\.json"):
            gacprof_scan(folder)
