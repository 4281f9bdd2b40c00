"""A config comes from strangers: what of it may reach the library that builds the model."""

import json
import os

import numpy as np
import pytest
from checkpoint_making import checkpoint
from test_load import SIZES, logits_of, saved

import gacprof
from gacprof.checkpoint import scan
from gacprof.checkpoint.config import passed, refuse_not_finite
from gacprof.core.errors import CheckpointError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from gacprof.checkpoint.load import load_model  # noqa: E402

HOSTILE = {
    **dict.fromkeys(("attn_implementation", "_attn_implementation"), "evil-org/x"),
    **dict.fromkeys(("_attn_implementation_internal", "experts_implementation"), "evil-org/x"),
    **dict.fromkeys(("_experts_implementation", "hub_kernels", "name_or_path"), "evil-org/x"),
    **dict.fromkeys(("_name_or_path", "base_model_name_or_path", "hidden_act"), "evil-org/x"),
    "use_kernels": True,
    "kernel_config": {"kernel_mapping": {"RMSNorm": "evil-org/x:RMSNorm"}},
    "auto_map": {"AutoModelForCausalLM": "evil-org/x--modeling.Model"},
    "quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True},
    "transformers_weights": "../../elsewhere.safetensors",
    "backbone": "evil_resnet",
    "rope_scaling": {"rope_type": "evil-org/x"},
    "return_dict": False,
    "output_attentions": True,
    "torchscript": True,
    **dict.fromkeys(("to_dict", "get_text_config"), 5),
    "anything": ["https://example.org"],
}
NOT_BUILT = ("hidden_act", "rope_scaling", "quantization_config")


def changed(folder, change):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    return folder


def test_nothing_that_names_code_passes():
    config = passed(SIZES | HOSTILE | {"rope_theta": 5e5}, transformers.LlamaConfig)
    assert config == SIZES | {"use_kernels": True, "rope_theta": 5e5}
    inner = {"text_config": SIZES | HOSTILE, "vision_config": HOSTILE, "model_type": "gemma3"}
    config = passed(inner, transformers.Gemma3Config)
    assert "evil" not in json.dumps(config) and config["text_config"]["hidden_size"] == 64


LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32}
HEADS = {"num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 128, "hidden_size": 64}
GPT = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 128}
TWO_KINDS = ["sliding_attention", "full_attention"]
HONEST = {
    "Llama tied": SIZES | {"tie_word_embeddings": True},
    "Llama 3": SIZES | {"head_dim": 16, "rope_theta": 5e5, "rope_scaling": LLAMA3},
    "Llama yarn": SIZES | {"rope_scaling": YARN},
    "Qwen2 biased": SIZES | {"use_sliding_window": True, "sliding_window": 8,
                             "max_window_layers": 1},
    "Mistral": SIZES,
    "Gemma2": SIZES | {"head_dim": 16},
    "Gemma3Text": SIZES | {"head_dim": 16, "sliding_window": 8, "layer_types": TWO_KINDS},
    "Phi3 fused": SIZES | {"pad_token_id": 0},
    "GPT2 transposed": GPT | {"bos_token_id": 0, "eos_token_id": 0},
    "GPTJ": GPT | {"rotary_dim": 8, "n_positions": 64},
    "Mixtral": SIZES | {"num_local_experts": 4},
    "Qwen3Moe": SIZES | {"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2,
                         "moe_intermediate_size": 32, "decoder_sparse_step": 2},
    "OPT": HEADS | {"ffn_dim": 96, "max_position_embeddings": 64, "word_embed_proj_dim": 64,
                    "activation_function": "relu"},
    "GPTNeoX": HEADS | {"intermediate_size": 96, "rotary_pct": 0.5,
                        "use_parallel_residual": False},
    "Falcon": HEADS | {"new_decoder_architecture": True, "num_kv_heads": 2},
    "Bloom": {"hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": 128},
    "Phi": SIZES | {"partial_rotary_factor": 0.5},
    "StableLm": SIZES | {"partial_rotary_factor": 0.25},
    "Granite": SIZES | {"logits_scaling": 3.0, "residual_multiplier": 0.5,
                        "embedding_multiplier": 2.0},
    "Cohere": SIZES | {"logit_scale": 0.5, "pad_token_id": 0},
    "Starcoder2": SIZES,
    "Olmo2": SIZES | {"pad_token_id": 0},
}  # fmt: skip
"""The name of a config's class, and what sets it apart."""


@pytest.mark.parametrize("kind", HONEST)
def test_honest_configs_build_the_model_that_they_describe(kind, tmp_path):
    config = getattr(transformers, f"{kind.split()[0]}Config")(**HONEST[kind])
    theirs = saved(tmp_path / "model", config)
    ids = torch.randint(128, (2, 12), generator=torch.Generator().manual_seed(1))
    ours = load_model(tmp_path / "model")
    np.testing.assert_allclose(logits_of(ours, ids), logits_of(theirs, ids), atol=1e-5)


def test_a_config_fetches_no_kernel(tmp_path, monkeypatch):
    """Experts go through transformers' own loading too. Asked without us, it does fetch."""
    asked = []

    def fetch(*names, **more):
        asked.append(names)
        raise RuntimeError("a kernel was asked for")

    monkeypatch.setattr("transformers.modeling_utils.lazy_import_flash_attention", fetch)
    saved(tmp_path / "model", transformers.MixtralConfig(**SIZES, num_local_experts=4))
    changed(tmp_path / "model", {k: v for k, v in HOSTILE.items() if k not in NOT_BUILT})
    model = load_model(tmp_path / "model")
    assert model.config._attn_implementation == "sdpa" and not asked
    model.config._attn_implementation = "evil-org/x"
    with pytest.raises(RuntimeError, match="a kernel was asked for"):
        transformers.AutoModelForCausalLM.from_config(model.config)
    assert asked == [("evil-org/x",)]


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama") / "model"
    saved(folder, transformers.LlamaConfig(**SIZES))
    return folder, (folder / "config.json").read_text()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_hidden_layers": 10_000_000}, "num_hidden_layers 10000000, the file has 21 tensors"),
        ({"num_hidden_layers": 10**30}, "disagree"),
        ({"num_local_experts": 10**9, "model_type": "mixtral"}, "disagree"),
        ({"model_type": "gpt2", "n_positions": 10**6}, "positions"),
        ({"max_position_embeddings": 10**12}, "positions"),
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
def test_a_config_that_no_model_can_be_built_of_is_refused(llama, change, said, tmp_path):
    folder, config = llama
    old = {k: v for k, v in json.loads(config).items() if k != "rope_parameters"}
    (folder / "config.json").write_text(json.dumps(old | change))
    for to in (None, "gguf", "vllm", "uniform"):
        with pytest.raises(CheckpointError) as refused:
            if to:
                gacprof.export(folder, to, tmp_path / "out", check="tensors")
            else:
                load_model(folder)
        assert "\n" not in str(refused.value) and len(str(refused.value)) < 500, to
        assert said in str(refused.value) or (to and said in ("disagree", "positions")), to
    assert not (tmp_path / "out").exists()


def test_quantised_weights_are_refused_without_a_config_that_says_so(tmp_path):
    shapes = {"model.layers.0.mlp.up_proj.weight": ("int8", (8, 8))}
    with pytest.raises(CheckpointError, match="is quantised"):
        load_model(checkpoint(tmp_path, shapes, {"model_type": "llama"}))


def test_infinity_is_a_value_where_the_model_type_has_it():
    refuse_not_finite({"model_type": "mamba2", "time_step_limit": [0.0, float("inf")]}, "m")


def test_a_config_that_is_no_file_is_refused_and_not_ignored(tmp_path):
    folder = checkpoint(tmp_path, {"lm_head.weight": (8, 8)}, {})
    for make in (os.mkfifo, lambda path: path.symlink_to("nowhere")):
        (folder / "config.json").unlink()
        make(folder / "config.json")
        with pytest.raises(CheckpointError, match=r"config\.json"):
            scan(folder)
