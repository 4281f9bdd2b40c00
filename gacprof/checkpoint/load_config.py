"""The config that a model is built from: the checkpoint's own, corrected by what it says besides.

A pickled model's modules know things that its config does not: compression tools bring their
own attention classes, some with constants written into the code.
"""

from __future__ import annotations

from typing import Any

from gacprof.checkpoint.inventory import Inventory
from gacprof.core.errors import CheckpointError

TOOL_ROPE_THETA = 10000.0
"""LlamaRotaryEmbedding's default, which SVD-LLM's (component/svd_llama.py) and LLM-Pruner's own
Llama attention leave in place whatever the config says."""

_TOOL_CLASSES = ("component.svd_", "LLMPruner.")
_REMOTE = ("auto_map", "quantization_config", "_name_or_path")


def effective_config(inventory: Inventory) -> dict[str, Any]:
    """The config as plain values, true to what the original tool's model computes.

    Raises :class:`CheckpointError` where the checkpoint has no config at all.
    """
    config = {k: v for k, v in inventory.config.items() if k not in _REMOTE}
    if not config.get("model_type"):
        raise CheckpointError(
            f"{inventory.path}: no config.json with a model_type; put the original model's "
            "config.json beside the weights"
        )
    config["model_type"] = _base_model_type(str(config["model_type"]))
    config |= module_facts(inventory)
    dims = {a.head_dim for a in inventory.attentions}
    if "head_dim" not in config and len(dims) == 1:
        implied = _implied_head_dim(config)
        if implied is not None and implied not in dims:
            config["head_dim"] = dims.pop()
    return config


def _base_model_type(model_type: str) -> str:
    """PaLU's ``palullama``, ``palumistral``, ``paluqwen2`` are those models with other k and v."""
    return model_type.removeprefix("palu") or model_type


def module_facts(inventory: Inventory) -> dict[str, Any]:
    """RoPE and RMS epsilon as a pickled model's modules have them, where they agree."""
    found: dict[str, Any] = {}
    rotary = [name for name in inventory.attributes if name.endswith(".rotary_emb")]
    theta = _only({_rope_theta(inventory, name) for name in rotary})
    if theta is not None:
        found["rope_theta"] = theta
        if all(_is_tools_own(inventory, name) for name in rotary):
            found["rope_scaling"] = None
    epsilon = _only({a.get("variance_epsilon") for a in inventory.attributes.values()} - {None})
    if epsilon is not None and "rms_norm_eps" in inventory.config:
        found["rms_norm_eps"] = epsilon
    return found


def _rope_theta(inventory: Inventory, module: str) -> float | None:
    """The base of one rotary embedding: its own, its attention's, or its class's default."""
    attention = inventory.attributes.get(module.removesuffix(".rotary_emb"), {})
    for value in (inventory.attributes[module].get("base"), attention.get("rope_theta")):
        if isinstance(value, int | float):
            return float(value)
    return TOOL_ROPE_THETA if _is_tools_own(inventory, module) else None


def _is_tools_own(inventory: Inventory, module: str) -> bool:
    return str(inventory.attributes[module].get("class")).startswith(_TOOL_CLASSES)


def _only(values: set[Any]) -> Any:
    return values.pop() if len(values) == 1 else None


def _implied_head_dim(config: dict[str, Any]) -> int | None:
    """What transformers takes where the config names no head_dim."""
    hidden, heads = config.get("hidden_size"), config.get("num_attention_heads")
    return hidden // heads if isinstance(hidden, int) and isinstance(heads, int) else None
