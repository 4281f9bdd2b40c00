"""A tiny model of every type of causal language model that the installed transformers has.

Widths are odd, and those of different parts of a model differ, so that nothing fits by chance.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

WIDTH, EXPERT, SHARED, TOWER = 83, 43, 51, 45

_SIZES = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "embedding_size", "lru_width", "dim"), 64),
    **dict.fromkeys(("num_hidden_layers", "first_layers"), 4),
    **dict.fromkeys(("n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_global_key_value_heads"), 2),
    **dict.fromkeys(("head_dim", "d_head", "global_head_dim", "qk_nope_head_dim"), 16),
    **dict.fromkeys(("v_head_dim", "kv_lora_rank", "q_lora_rank"), 16),
    **dict.fromkeys(("qk_rope_head_dim", "rotary_dim", "index_topk"), 8),
    **dict.fromkeys(("intermediate_size", "n_inner", "d_ff", "ffn_dim", "ffn_hidden_size"), WIDTH),
    **dict.fromkeys(("decoder_ffn_dim", "encoder_ffn_dim", "d_inner", "dim_ff"), WIDTH),
    **dict.fromkeys(("moe_intermediate_size", "expert_ffn_hidden_size"), EXPERT),
    **dict.fromkeys(("shared_expert_intermediate_size", "shared_intermediate_size"), SHARED),
    "moe_shared_expert_intermediate_size": SHARED,
    "intermediate_size_mlp": 61,
    "dense_intermediate_size": 61,
    **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("moe_num_experts", "num_experts_per_tok", "num_experts_per_token"), 2),
    **dict.fromkeys(("moe_top_k", "moe_k", "moe_topk", "num_codebooks"), 2),
    "moe_num_experts": 4,
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace", "zero_expert_num"), 1),
    **dict.fromkeys(("n_groups", "mamba_n_groups", "mamba_ngroups"), 1),
    **dict.fromkeys(("mamba_d_state", "mamba_d_head", "mamba_headdim", "mamba_head_dim"), 16),
    **dict.fromkeys(("state_size", "attention_window_size", "sliding_window", "block_size"), 16),
    **dict.fromkeys(("n_mamba_heads", "mamba_num_heads", "mamba_n_heads"), 8),
    **dict.fromkeys(("hidden_size_per_layer_input", "index_head_dim"), 16),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 16),
    **dict.fromkeys(("linear_num_key_heads", "index_n_heads"), 2),
    "linear_num_value_heads": 4,
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input", "audio_vocab_size"), 96),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx"), 64),
    "seq_len": 32,
    "image_token_id": 90,
    "conv_kernel": 4,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "dropout": 0.0,
    "router_aux_loss_coef": 0.0,
}
_VISION = {
    "hidden_size": 32,
    "intermediate_size": TOWER,
    "num_hidden_layers": 1,
    "image_size": 56,
    "num_attention_heads": 2,
    "patch_size": 14,
}
_ALL_HEADS = ("axk2", "deepseek_v2", "deepseek_v32", "deepseek_v4", "glm4_moe_lite", "glm_moe_dsa")
_LATENT = ("axk1", "deepseek_v3", "longcat_flash", "youtu")
_TWO_KINDS = {"layer_types": ["linear_attention", "full_attention"], "num_hidden_layers": 2}
_OWN: dict[str, dict[str, Any]] = {
    **{kind: {"num_key_value_heads": 4} for kind in (*_ALL_HEADS, "minicpm3")},
    **{kind: {"num_key_value_heads": 4, "head_dim": 8} for kind in _LATENT},
    **{
        kind: {**_TWO_KINDS, "num_key_value_heads": 4} for kind in ("bailing_hybrid", "kimi_linear")
    },
    "bamba": {"attn_layer_indices": [1], "num_hidden_layers": 2},
    "dbrx": {
        **{"d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 64, "vocab_size": 96},
        "ffn_config": {
            **{"ffn_hidden_size": WIDTH, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 64}
        },
        "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0},
    },
    "falcon_h1": {"mamba_d_ssm": 128},
    "gemma3": {"vision_config": _VISION},
    "gpt_neo": {
        **{"attention_types": [[["global", "local"], 1]], "num_layers": 2, "hidden_size": 64},
        **{"intermediate_size": WIDTH, "num_heads": 4},
    },
    "granitemoehybrid": {"layer_types": ["mamba", "attention"], "num_hidden_layers": 2},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "num_hidden_layers": 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2},
    "mamba2": {"num_heads": 8, "head_dim": 16},
    "recurrent_gemma": {"intermediate_size": 2 * WIDTH},
    "reformer": {
        **{"is_decoder": True, "axial_pos_shape": [8, 8], "axial_pos_embds_dim": [32, 32]},
        "attn_layers": ["local", "local"],
    },
    "xmod": {"default_language": "en_XX"},
    "zamba": {
        **{"num_hidden_layers": 4, "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"]},
        "attention_head_dim": 32,
    },
    "zamba2": {
        **{"num_hidden_layers": 4, "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"]},
        "num_mem_blocks": 1,
    },
    "zaya": {"num_experts_per_tok": 1},
}
"""What types need beside the common sizes."""


def tiny_config(kind: str, **own: Any) -> Any:
    """A config of the type with odd sizes, and ``own`` ones."""
    import transformers

    kind_of_config = transformers.CONFIG_MAPPING[kind]
    return kind_of_config(**_merged(_sizes(kind_of_config) | _OWN.get(kind, {}), own))


FEW_LAYERS = dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 8)


def default_config(kind: str, **own: Any) -> Any:
    """A config of the type with the sizes that its class has by default, and few layers."""
    import transformers

    kind_of_config = transformers.CONFIG_MAPPING[kind]
    return kind_of_config(**_merged(_sizes(kind_of_config, FEW_LAYERS), own))


def _merged(sizes: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Some sizes with own ones, in their parts too."""
    parts = {key: sizes[key] | own[key] for key in sizes.keys() & own if key.endswith("_config")}
    return {**sizes, **own, **parts}


def without_weights(config: Any) -> Any:
    """A model of a config on torch's meta device: shapes, and no memory."""
    import torch
    from transformers.models.auto import modeling_auto

    mapping = modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    auto = modeling_auto.AutoModelForCausalLM
    if type(config) in mapping:
        auto = modeling_auto.AutoModelForImageTextToText
    with torch.device("meta"):
        return auto.from_config(config)


def tiny_of(kind: str) -> Any:
    """A model of the type, of random weights none of which is zero or one."""
    import torch
    import transformers

    config = tiny_config(kind)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, **EAGER).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn(parameter.shape) * 0.05
    return model


EAGER = {"attn_implementation": "eager", "experts_implementation": "eager"}
"""Grouped products want strides of 16 bytes, which odd widths have not."""


def _sizes(config: Any, wanted: Mapping[str, Any] = _SIZES) -> dict[str, Any]:
    """The common sizes that a config class has, those of its parts too."""
    try:
        default = config().to_dict()
    except Exception:  # whatever a class that needs arguments raises
        default = {}
    fields = {name for c in config.__mro__ for name in getattr(c, "__annotations__", {})}
    sizes: dict[str, Any] = {k: v for k, v in wanted.items() if k in fields | default.keys()}
    for name, part in (getattr(config, "sub_configs", None) or {}).items():
        if isinstance(default.get(name), dict) and hasattr(part, "model_type"):
            sizes[name] = _sizes(part, wanted)
            if name in ("vision_config", "audio_config") and "intermediate_size" in sizes[name]:
                sizes[name]["intermediate_size"] = TOWER
    return sizes
