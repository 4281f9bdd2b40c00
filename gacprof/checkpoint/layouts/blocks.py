"""What a decoder block is made of: the heads of its attention, the width of its MLP.

A rank is never a head_dim: factored q, k, v are counted by what they give out, which is what
SDPA sees.

Padding a width with zeros is exact for every activation that is finite at zero: the new hidden
units are multiplied by down's zero columns.
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from gacprof.checkpoint.config import config_of_part, count
from gacprof.checkpoint.inventory import Attention, Contents, Dim, Feed, Inventory, NewSizes, Place
from gacprof.checkpoint.layouts.linear import Linear
from gacprof.checkpoint.layouts.names import (
    in_tower,
    is_expert,
    layer_of,
    names_below,
    parent_of,
    role_of,
)


def find_attentions(
    contents: Contents, linears: Sequence[Linear]
) -> tuple[tuple[Attention, ...], list[str]]:
    """One attention per layer that has q and k (or a fused qkv), and notes on doubts."""
    layers: dict[str, dict[str, Linear]] = {}
    for linear in linears:
        role = role_of(linear.name)
        if role in ("q", "k", "v", "qkv") and layer_of(linear.name) is not None:
            layers.setdefault(parent_of(linear.name), {})[role] = linear
    found, notes = _latent(contents, linears), []
    for name, parts in layers.items():
        if not {"q", "k"} <= parts.keys() and "qkv" not in parts:
            continue
        attention, note = _attention(contents, name, parts)
        if attention is not None:
            found.append(attention)
        if note:
            notes.append(note)
    return tuple(found), notes


def _latent(contents: Contents, linears: Sequence[Linear]) -> list[Attention]:
    """DeepSeek's latent attention: q and k have a rotated and an unrotated part per head."""
    config = config_of_part(contents.config)
    heads = count(config, "num_attention_heads")
    plain, rotated = count(config, "qk_nope_head_dim"), count(config, "qk_rope_head_dim")
    if not heads or not plain or not rotated:
        return []
    return [
        Attention(layer_of(linear.name) or 0, heads, heads, plain + rotated)
        for linear in linears
        if linear.name.endswith(".kv_b_proj")
    ]


def _attention(
    contents: Contents, name: str, parts: Mapping[str, Linear]
) -> tuple[Attention | None, str]:
    layer = layer_of(name) or 0
    whole = config_of_part(contents.config, name)
    own = contents.attributes.get(name, {})
    config: Mapping[str, Any] = ChainMap(own, whole)  # type: ignore[arg-type]  # only read
    heads = count(config, "num_heads", "num_attention_heads", "n_head")
    kv_heads = count(config, "num_key_value_heads", "num_kv_heads") or heads
    head_dim = _declared_head_dim(config, whole)
    if "qkv" in parts:
        if not heads or not head_dim:
            return None, f"{name}: heads unknown: the config names none"
        rest = parts["qkv"].out_features(contents) - heads * head_dim
        if rest <= 0 or rest % (2 * head_dim):
            return None, f"{name}: fused q, k, v do not fit {heads} heads of {head_dim}"
        return Attention(layer, heads, rest // (2 * head_dim), head_dim), ""
    q, k = parts["q"].out_features(contents), parts["k"].out_features(contents)
    if head_dim and q % head_dim == 0 and k % head_dim == 0 and q and k:
        return Attention(layer, q // head_dim, k // head_dim, head_dim), ""
    if heads and kv_heads and q % heads == 0 and k == q // heads * kv_heads:
        note = f"{name}: head_dim {q // heads} by shape, the config's {head_dim} does not divide"
        return Attention(layer, heads, kv_heads, q // heads), note
    return None, f"{name}: q gives {q} and k {k} entries, which no head count in the config fits"


def _declared_head_dim(config: Mapping[str, Any], whole: Mapping[str, Any]) -> int | None:
    """head_dim as ``config`` has it, else the model's hidden size over heads (transformers'
    default)."""
    given = count(config, "head_dim")
    if given:
        return given
    hidden = count(whole, "hidden_size", "n_embd", "d_model")
    heads = count(whole, "num_attention_heads", "n_head", "num_heads")
    return hidden // heads if hidden and heads and hidden % heads == 0 else None


_WIDTH_KEYS = {
    "mlp": ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size"),
    "expert": ("moe_intermediate_size", "intermediate_size"),
    "shared_expert": ("shared_expert_intermediate_size",),
    "tower": (),
}
"""Where configs of transformers write the width, by what the MLP is."""


def find_widths(contents: Contents, linears: Sequence[Linear]) -> tuple[list[Dim], list[str]]:
    """One dim per MLP, and notes on those whose sizes disagree."""
    mlps: dict[str, dict[str, Linear]] = {}
    for linear in linears:
        role = role_of(linear.name).removeprefix("expert_")
        if role in ("gate", "up", "gate_up", "down"):
            mlps.setdefault(_mlp_of(linear.name), {})[role] = linear
    below = names_below(mlps, contents.tensors)
    around = [x for x in linears if role_of(x.name) in ("q", "k", "v", "qkv", "o")]
    attention = {tensor for linear in around for tensor in linear.tensors}
    dims, notes = [], []
    for mlp, parts in mlps.items():
        if "down" not in parts or not parts.keys() & {"up", "gate_up", "gate"}:
            continue
        strangers = [name for name in below.get(mlp, ()) if name not in attention]
        dim = _width(contents, mlp, parts, strangers)
        if dim is None:
            notes.append(f"{mlp}: widths of {', '.join(sorted(parts))} do not fit each other")
        else:
            dims.append(dim)
    for kind, sizes, declared in _disagreements(contents.config, dims, {}):
        notes.append(
            f"config says {kind} width {declared}, the tensors have {_listed(sizes)}; the tensors "
            "are believed, a plain transformers model refuses them"
        )
    return dims, notes


def _disagreements(
    config: Mapping[str, Any], dims: Iterable[Dim], sizes: NewSizes
) -> Iterator[tuple[str, set[int], int]]:
    """Kinds of MLPs whose widths, once dims have ``sizes``, are not the config's one."""
    widths = [dim for dim in dims if dim.kind == "width"]
    for kind in _WIDTH_KEYS:
        new = {sizes.get(dim.name, dim.size) for dim in widths if dim.role == kind}
        found = {size for size in new if size is not None}
        declared = _declared_width(config, kind, found)
        if found and declared is not None and found != {declared}:
            yield kind, found, declared


def _listed(sizes: Iterable[int]) -> str:
    return ", ".join(str(size) for size in sorted(sizes)[:6])


def _declared_width(config: Mapping[str, Any], kind: str, sizes: Collection[int]) -> int | None:
    """The width that ``config`` says for MLPs of a kind whose tensors have ``sizes``."""
    config = config_of_part(config)
    key = _width_key(config, kind, sizes)
    value = config.get(key) if key else None
    return value if type(value) is int else None


def _width_key(config: Mapping[str, Any], kind: str, sizes: Collection[int]) -> str | None:
    """Where the config writes the width: among several such keys, the one that is true.

    GPT-2's may leave its ``n_inner`` out (4 · n_embd then).
    """
    there = [key for key in _WIDTH_KEYS[kind] if key in config]
    default = "n_inner" if kind == "mlp" and "n_embd" in config else None
    return next((k for k in there if config[k] in list(sizes)), there[0] if there else default)


def _mlp_of(module: str) -> str:
    parent = parent_of(module)
    if parent.endswith((".intermediate", ".output")):  # BERT: intermediate.dense, output.dense
        return parent_of(parent)
    return parent


def _width(
    contents: Contents, mlp: str, parts: dict[str, Linear], strangers: Sequence[str]
) -> Dim | None:
    down = parts["down"]
    size = down.in_features(contents)
    places, feeds, cost = [], [], down.parameters_per_input(contents)
    for role, linear in parts.items():
        if role == "down":
            continue
        copies = 2 if role == "gate_up" else 1
        if linear.out_features(contents) != size * copies or len(linear.outer) != 1:
            return None
        cost += copies * linear.parameters_per_output(contents)
        for i in range(copies):
            places.append(Place(linear.outer[0], linear.axes[0], i * size))
            places.extend(Place(bias, 0, i * size) for bias in linear.biases)
            feeds.append(Feed(linear.outer[0], "N"))
    places.append(Place(down.reads, down.axes[1]))
    feeds.append(Feed(down.reads, "K"))
    why = _refusal(contents, size, parts, strangers)
    # LLM-Pruner keeps the old config; one that says the stored size says nothing of an earlier one
    declared = _declared_width(contents.config, _kind_of(mlp), (size,)) or 0
    return Dim(
        name=f"{mlp}:width",
        kind="width",
        size=size,
        places=tuple(places),
        feeds=tuple(feeds),
        params_per_unit=cost,
        layer=layer_of(mlp),
        role=_kind_of(mlp),
        dense_size=declared if declared > size else None,
        padding="refused" if why else "exact",
        why=why,
    )


def _kind_of(mlp: str) -> str:
    if is_expert(f"{mlp}."):
        return "expert"
    if in_tower(mlp):
        return "tower"
    return "shared_expert" if mlp.endswith(("shared_expert", "shared_experts")) else "mlp"


_OF_THE_STREAM = re.compile(
    r"((input|post_attention|(pre|post)_feedforward)_layernorm|ln_[12]|LayerNorm|norm[12]"
    r"|(self_attn|encoder_attn|final)_layer_norm)\.(weight|bias)"
)
"""Norms of the residual stream. In OPT they stand beside fc1 and fc2; where the MLP is as wide as
the stream, only their names tell them from a norm between the two."""


def _refusal(
    contents: Contents, size: int, parts: dict[str, Linear], strangers: Sequence[str]
) -> str:
    """Why this width may not change: a packed weight, or an unknown tensor of that size."""
    for linear in parts.values():
        if linear.frozen:
            return linear.frozen
    known = {tensor for linear in parts.values() for tensor in linear.tensors}
    is_square = parts["down"].out_features(contents) == size
    for name in strangers:
        if name in known or size not in contents.shape(name):
            continue
        if not (is_square and _OF_THE_STREAM.fullmatch(".".join(name.split(".")[-2:]))):
            return f"{name} has the same width and is not known to allow zeros"
    return ""


def widths_against_config(
    inventory: Inventory, sizes: NewSizes, config: Mapping[str, Any]
) -> list[str]:
    """What ``config`` does not say of the widths once the dims have ``sizes``, by kind."""
    notes = []
    for kind, new, declared in _disagreements(config, inventory.dims, sizes):
        reason = " (it has one for all layers)" if len(new) > 1 else ""
        notes.append(
            f"the {kind} widths are {_listed(new)}, the config says {declared}{reason}: a plain "
            "transformers model refuses these weights, gacprof.load_model takes them"
        )
    return notes


def mirror_widths(
    inventory: Inventory, sizes: NewSizes, config: Mapping[str, Any]
) -> dict[str, Any]:
    """``config`` with the width where all MLPs of a kind now have the same one."""
    if isinstance(config.get("text_config"), dict):
        return {**config, "text_config": mirror_widths(inventory, sizes, config["text_config"])}
    config = dict(config)
    for kind in _WIDTH_KEYS:
        dims = [d for d in inventory.dims if d.kind == "width" and d.role == kind]
        new = {sizes.get(d.name, d.size) for d in dims}
        key = _width_key(config, kind, {d.size for d in dims})
        if key is not None and len(new) == 1 and any(d.name in sizes for d in dims):
            config[key] = new.pop()
    return config
