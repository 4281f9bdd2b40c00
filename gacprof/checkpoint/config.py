"""What configs say: a checkpoint's own, corrected by what its modules and its tool are known to do.

A pickled model's modules know things that its config does not: compression tools bring their
own attention classes, some with constants written into the code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from inspect import signature
from typing import TYPE_CHECKING, Any

import gacprof.compressors
from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.layouts.names import in_tower
from gacprof.core.errors import CheckpointError

if TYPE_CHECKING:
    from gacprof.compressors.compressor import Compressor

WORDS = {
    *("model_type", "architectures", "hidden_act", "hidden_activation", "activation_function"),
    *("layer_types", "rope_type", "type", "rope_theta", "rope_scaling", "rope_parameters"),
    *("position_embedding_type", "norm_type", "feed_forward_proj"),
}
"""Keys under which text passes whatever the model: none of them names code."""

NUMBERS = {
    *("vocab_size", "tie_word_embeddings", "is_decoder", "is_encoder_decoder"),
    *("chunk_size_feed_forward", "bos_token_id", "eos_token_id", "pad_token_id"),
}
"""What all configs have in common and a checkpoint may say: beside these it is ours."""

_OURS = re.compile(
    r"_.*|(use_)?return_dict|output_.*|torchscript|use_bfloat16|(torch_)?dtype|pruned_heads"
    r"|(quantization|distributed|kernel)_config"
)
_CODE = re.compile(r"impl|kernel|backbone|quant|auto_map|path|repo|hub|custom|class")
_WORD = re.compile(r"[A-Za-z0-9_.+-]{1,100}")
_DEEPEST = 8


def passed(config: Mapping[str, Any], kind: Any) -> dict[str, Any]:
    """What of a foreign ``config`` may reach transformers' config class ``kind``.

    A number sizes a model and cannot name code; text can (``attn_implementation``: "org/kernel"
    is fetched from a hub and run). So text passes only as a plain word, under a key that
    ``kind`` itself declares or that is one of :data:`WORDS`. What all configs have in common
    (how to attend, what to return, where it came from) is not a checkpoint's to say.
    """
    base = next((c for c in kind.__mro__ if c.__name__.lower() == "pretrainedconfig"), object)
    words = WORDS | _declared(kind, base)
    parts = getattr(kind, "sub_configs", None) or {}
    found = {}
    for key, value in config.items():
        if _OURS.fullmatch(key) or (hasattr(base, key) and key not in NUMBERS | WORDS):
            continue
        part = getattr(parts.get(key), "config_class", parts.get(key))
        if isinstance(value, Mapping) and isinstance(part, type):
            found[key] = passed(value, part)
        elif _is_harmless(value, key in words and not _CODE.search(key)):
            found[key] = value
    return found


def _declared(kind: Any, base: type) -> set[str]:
    """The keys that a config class adds to those of all configs."""
    found: set[str] = set()
    for each in kind.__mro__[: kind.__mro__.index(base)]:
        own = vars(each)
        if "__annotations__" in own:
            found |= own["__annotations__"].keys()
        elif "__init__" in own:
            found |= signature(own["__init__"]).parameters.keys()
    return found


def _is_harmless(value: Any, may_be_word: bool, deep: int = 0) -> bool:
    """A number, a plain word where one may be, or lists and dicts of those."""
    if isinstance(value, str):
        return may_be_word and _WORD.fullmatch(value) is not None
    if isinstance(value, Mapping):
        parts = [(key in WORDS, part) for key, part in value.items()]
    else:
        parts = [(may_be_word, part) for part in value] if isinstance(value, list) else []
    return deep < _DEEPEST and all(_is_harmless(part, word, deep + 1) for word, part in parts)


_COUNT = re.compile(r"(layers?|blocks|experts)$")
_POSITIONS = re.compile(r"positions$|position_embeddings$|^n_ctx$")
MOST_POSITIONS = 1 << 24
"""The longest contexts are of ten million tokens."""
MASKED = frozenset(("gpt2", "gpt_neo", "gptj", "codegen", "gpt_bigcode", "openai-gpt", "imagegpt"))
"""Model types that hold a mask of positions × positions in every layer."""
MOST_MASKED = 1 << 33


def refuse_oversized(config: Mapping[str, Any], tensors: int, path: str) -> None:
    """Raise :class:`CheckpointError` where a model of this config would not come from ``tensors``
    tensors: each layer and each expert needs one, and building millions takes hours."""
    for part in (config, config.get("text_config"), config.get("vision_config")):
        sizes = part if isinstance(part, Mapping) else {}
        whole = {key: value for key, value in sizes.items() if type(value) is int}
        counts = {key: value for key, value in whole.items() if _COUNT.search(key)}
        key = max(counts, key=lambda name: counts[name], default="")
        if key and counts[key] > max(tensors, 1024):
            raise CheckpointError(
                f"{path}: its config says {key} {str(counts[key])[:20]}, the file has {tensors} "
                "tensors: config and tensors disagree"
            )
        longest = max((whole[key] for key in whole if _POSITIONS.search(key)), default=0)
        layers = max((n for key, n in counts.items() if "layer" in key), default=1)
        is_masked = sizes.get("model_type") in MASKED
        if longest > MOST_POSITIONS or (is_masked and layers * longest**2 > MOST_MASKED):
            raise CheckpointError(
                f"{path}: its config's {str(longest)[:20]} positions are more than memory has"
            )


def config_of_part(config: Mapping[str, Any], name: str = "") -> Mapping[str, Any]:
    """The part of a multimodal config that describes the module ``name``; all of a plain one."""
    inner = config.get("vision_config" if in_tower(name) else "text_config")
    return inner if isinstance(inner, Mapping) else config


def count(config: Mapping[str, Any], *keys: str) -> int | None:
    """The first of these that the config has as a positive whole number."""
    values = (config.get(key) for key in keys)
    return next((value for value in values if type(value) is int and value > 0), None)


def effective_config(inventory: Inventory) -> dict[str, Any]:
    """The config as plain values, true to what the original tool's model computes.

    Raises :class:`CheckpointError` where the checkpoint has no config at all.
    """
    config = dict(inventory.config)
    if not config.get("model_type"):
        raise CheckpointError(
            f"{inventory.path}: no config.json with a model_type; put the original model's "
            "config.json beside the weights"
        )
    model_type = str(config["model_type"])
    for tool in gacprof.compressors.compressors():
        model_type = tool.without_prefix(model_type)
    model_type = model_type.removeprefix("gacprof_")  # a folder of gacprof export
    config["model_type"] = model_type
    config |= module_facts(inventory)
    head_dim = _only({a.head_dim for a in inventory.attentions})
    hidden, heads = count(config, "hidden_size"), count(config, "num_attention_heads")
    # else transformers takes hidden over heads
    if "head_dim" not in config and head_dim and hidden and heads and hidden // heads != head_dim:
        config["head_dim"] = head_dim
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
    return next((c for c in gacprof.compressors.compressors() if c.has_class(kind)), None)


def _only(values: set[Any]) -> Any:
    return values.pop() if len(values) == 1 else None
