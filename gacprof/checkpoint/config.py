"""What configs say: a checkpoint's own, corrected by what its modules and its tool are known to do.

A pickled model's modules know things that its config does not: compression tools bring their
own attention classes, some with constants written into the code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import gacprof.compressors
from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.layouts.names import in_tower
from gacprof.core.errors import CheckpointError

if TYPE_CHECKING:
    from gacprof.compressors.compressor import Compressor

_REMOTE = ("auto_map", "quantization_config", "_name_or_path")


def config_of_part(config: Mapping[str, Any], name: str = "") -> dict[str, Any]:
    """The part of a multimodal config that describes the module ``name``; all of a plain one."""
    inner = config.get("vision_config" if in_tower(name) else "text_config")
    return dict(inner) if isinstance(inner, Mapping) else dict(config)


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
    model_type = str(config["model_type"])
    for tool in gacprof.compressors.COMPRESSORS:
        model_type = tool.without_prefix(model_type)
    model_type = model_type.removeprefix("gacprof_")  # a folder of gacprof export
    config["model_type"] = model_type
    config |= module_facts(inventory)
    dims = {a.head_dim for a in inventory.attentions}
    if "head_dim" not in config and len(dims) == 1:
        implied = _implied_head_dim(config)
        if implied is not None and implied not in dims:
            config["head_dim"] = dims.pop()
    return config


def module_facts(inventory: Inventory) -> dict[str, Any]:
    """RoPE and RMS epsilon as a pickled model's modules have them, where they agree."""
    found: dict[str, Any] = {}
    rotary = [name for name in inventory.attributes if name.endswith(".rotary_emb")]
    theta = _only({_rope_theta(inventory, name) for name in rotary})
    if theta is not None:
        found["rope_theta"] = theta
        if all(_tool_of(inventory, name) for name in rotary):
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
    tool = _tool_of(inventory, module)
    return tool.rope_theta if tool else None


def _tool_of(inventory: Inventory, module: str) -> Compressor | None:
    """The compressor whose own class a module of a pickled model is of."""
    kind = str(inventory.attributes[module].get("class"))
    return next((c for c in gacprof.compressors.COMPRESSORS if c.has_class(kind)), None)


def _only(values: set[Any]) -> Any:
    return values.pop() if len(values) == 1 else None


def _implied_head_dim(config: Mapping[str, Any]) -> int | None:
    """What transformers takes where the config names no head_dim."""
    hidden, heads = config.get("hidden_size"), config.get("num_attention_heads")
    return hidden // heads if isinstance(hidden, int) and isinstance(heads, int) else None
