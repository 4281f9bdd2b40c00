"""A foreign checkpoint's config: true to what its model computes, and what of it may reach
transformers.

A pickled model's modules know things that its config does not: compression tools bring their own
attention classes, some with constants written into the code.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from inspect import signature
from typing import Any

from gacprof.checkpoint.inventory import Inventory, NewSizes
from gacprof.checkpoint.layouts import layout_named
from gacprof.checkpoint.layouts.declared import count
from gacprof.checkpoint.layouts.layout import Compressor
from gacprof.checkpoint.layouts.tools import compressors
from gacprof.core.errors import CheckpointError, short

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


def require_transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise CheckpointError(
            "building a model needs transformers: pip install gacprof[models]"
        ) from None
    return transformers


_COUNT = re.compile(r"(layers?|blocks|experts)$")
_POSITIONS = re.compile(r"positions$|position_embeddings$|^n_ctx$")
MOST_POSITIONS = 1 << 24
"""The longest contexts are of ten million tokens."""
MASKED = frozenset(("gpt2", "gpt_neo", "gptj", "codegen", "gpt_bigcode", "openai-gpt", "imagegpt"))
"""Model types that hold a mask of positions × positions in every layer."""
MOST_MASKED = 1 << 33


_WIDTH = re.compile(
    r"(hidden|intermediate)_size$|^(n_embd|d_model|d_ff)$|(ffn_dim|head_dim|heads)$"
)
_TOKENS = ("embed_tokens", "wte", "word_embeddings", "embed_in")
MOST_PRUNED = 16
"""How many times a width of the config may be the longest side that is left of any tensor."""
UNBOUNDED = frozenset(("time_step_limit",))
"""Keys under which infinity is a value: Mamba 2 and Bamba clamp time steps to [0, ∞]."""


def refuse_not_finite(config: Mapping[str, Any], path: str) -> None:
    """Raise :class:`CheckpointError` for NaN or infinity, and for a RoPE base that is not above
    zero: the model of such a config computes NaN."""
    for key, value in _settings(config):
        if isinstance(value, float) and not math.isfinite(value) and key not in UNBOUNDED:
            fault = "is not finite"
        elif key == "rope_theta" and type(value) in (int, float) and value <= 0:
            fault = "is not above 0"
        else:
            continue
        raise CheckpointError(f"{path}: its config's {key[:80]} {fault} ({value}): mend the config")


def _settings(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Every number or word of a config with the name that it stands under."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from _settings(part, str(name))
    elif isinstance(value, list):
        for part in value:
            yield from _settings(part, key)
    else:
        yield key, value


def refuse_oversized(config: Mapping[str, Any], inventory: Inventory) -> None:
    """Raise :class:`CheckpointError` where a model of this config would not come from these
    tensors: each layer and each expert needs one, widths and the vocabulary are sides of one.
    Building the model would take hours, or memory that no file of this size can fill."""
    path, tensors = inventory.path, len(inventory.tensors)
    longest_side = max((max(t.shape, default=0) for t in inventory.tensors.values()), default=0)
    tables = [m.in_features for m in inventory.modules if m.name.endswith(_TOKENS)]
    rows = max(tables, default=longest_side)
    for key in ("hidden_size", "vocab_size", "num_attention_heads", "num_hidden_layers"):
        if type(config.get(key)) is int and config[key] < 1:
            raise CheckpointError(f"{path}: its config says {key} {short(config[key])}: mend it")
    most_wide = MOST_PRUNED * max(longest_side, 1024)
    bounds = (
        (_COUNT, max(tensors, 1024), f"{tensors} tensors"),
        (_WIDTH, most_wide, f"no side longer than {longest_side}"),
        (re.compile("^vocab_size$"), rows, f"an embedding of {rows} rows"),
    )
    for part in (config, config.get("text_config"), config.get("vision_config")):
        sizes = part if isinstance(part, Mapping) else {}
        whole = {key: value for key, value in sizes.items() if type(value) is int}
        for pattern, most, has in bounds:
            for key, value in whole.items():
                if pattern.search(key) and value > most:
                    raise CheckpointError(
                        f"{path}: its config says {key} {short(value)}, the file has {has}: "
                        "config and tensors disagree"
                    )
        longest = max((whole[key] for key in whole if _POSITIONS.search(key)), default=0)
        layers = max((n for k, n in whole.items() if _COUNT.search(k) and "layer" in k), default=1)
        is_masked = sizes.get("model_type") in MASKED
        if longest > MOST_POSITIONS or (is_masked and layers * longest**2 > MOST_MASKED):
            raise CheckpointError(
                f"{path}: its config's {str(longest)[:20]} positions are more than memory has"
            )


def without_heads(values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings that transformers 5 takes, and the heads, to be set once the config is made.

    It refuses a hidden size that is no multiple of the heads, as a pruned model's need not be, even
    where head_dim is given. Exported folders bring this function with their code.
    """
    hidden, heads = values.get("hidden_size"), values.get("num_attention_heads")
    if not (values.get("head_dim") and hidden and heads and hidden % heads):
        return values, {}
    keys = ("num_attention_heads", "num_key_value_heads")
    late = {key: values[key] for key in keys if key in values}
    return {**values, **dict.fromkeys(late, 1)}, late


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
