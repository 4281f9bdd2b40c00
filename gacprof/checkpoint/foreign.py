"""A foreign checkpoint's config, true to what its model computes.

A pickled model's modules know things that its config does not: compression tools bring their
own attention classes, some with constants written into the code.
"""

from __future__ import annotations

from typing import Any

from gacprof.checkpoint.config import count, refuse_not_finite
from gacprof.checkpoint.inventory import Inventory, NewSizes
from gacprof.checkpoint.layouts import layout_named
from gacprof.checkpoint.layouts.layout import Compressor
from gacprof.checkpoint.layouts.tools import compressors
from gacprof.core.errors import CheckpointError


def effective_config(inventory: Inventory) -> dict[str, Any]:
    """The config as plain values, true to what the original tool's model computes.

    Raises :class:`CheckpointError` where the checkpoint has no config at all, or one with numbers
    that no model computes with.
    """
    config = dict(inventory.config)
    if not config.get("model_type"):
        raise CheckpointError(
            f"{inventory.path}: no config.json with a model_type; put the original model's "
            "config.json beside the weights"
        )
    model_type = str(config["model_type"])
    for tool in compressors():
        model_type = tool.without_prefix(model_type)
    model_type = model_type.removeprefix("gacprof_")  # a folder of gacprof export
    config["model_type"] = model_type
    config |= module_facts(inventory)
    refuse_not_finite(config, inventory.path)
    head_dim = _only({a.head_dim for a in inventory.attentions})
    hidden, heads = count(config, "hidden_size"), count(config, "num_attention_heads")
    # else transformers takes hidden over heads
    if "head_dim" not in config and head_dim and hidden and heads and hidden // heads != head_dim:
        config["head_dim"] = head_dim
    return config


def mirrored_files(inventory: Inventory, sizes: NewSizes) -> dict[str, dict[str, Any]]:
    """The JSON files that must change when dims are resized, by file name.

    ``sizes`` maps dim names to new sizes; a dim not named keeps its size, and ``None`` says
    that it is gone. Unknown keys of every file are kept, and what only the modules of a pickled
    model know goes into the config. A file not in the result is unchanged.
    """
    files = layout_named(inventory.layout).mirror(inventory, sizes)
    if "config.json" in files:
        files["config.json"] |= module_facts(inventory)
    return files


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
    return next((c for c in compressors() if c.has_class(kind)), None)


def _only(values: set[Any]) -> Any:
    return values.pop() if len(values) == 1 else None
