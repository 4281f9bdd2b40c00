"""The heads of a decoder block's attention.

A rank is never a head_dim: factored q, k, v are counted by what they give out, which is what
SDPA sees.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from typing import Any

from gacprof.checkpoint.inventory import AttentionHeads, Contents
from gacprof.checkpoint.layouts.declared import config_of_part, count
from gacprof.checkpoint.layouts.linear import Linear
from gacprof.checkpoint.layouts.names import layer_of, parent_of, role_of


def find_attentions(
    contents: Contents, linears: Sequence[Linear]
) -> tuple[tuple[AttentionHeads, ...], list[str]]:
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


def _latent(contents: Contents, linears: Sequence[Linear]) -> list[AttentionHeads]:
    """DeepSeek's latent attention: q and k have a rotated and an unrotated part per head."""
    config = config_of_part(contents.config)
    heads = count(config, "num_attention_heads")
    plain, rotated = count(config, "qk_nope_head_dim"), count(config, "qk_rope_head_dim")
    if not heads or not plain or not rotated:
        return []
    return [
        AttentionHeads(layer_of(linear.name) or 0, heads, heads, plain + rotated)
        for linear in linears
        if linear.name.endswith(".kv_b_proj")
    ]


def _attention(
    contents: Contents, name: str, parts: Mapping[str, Linear]
) -> tuple[AttentionHeads | None, str]:
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
        return AttentionHeads(layer, heads, rest // (2 * head_dim), head_dim), ""
    q, k = parts["q"].out_features(contents), parts["k"].out_features(contents)
    if head_dim and q % head_dim == 0 and k % head_dim == 0 and q and k:
        return AttentionHeads(layer, q // head_dim, k // head_dim, head_dim), ""
    if heads and kv_heads and q % heads == 0 and k == q // heads * kv_heads:
        note = f"{name}: head_dim {q // heads} by shape, the config's {head_dim} does not divide"
        return AttentionHeads(layer, heads, kv_heads, q // heads), note
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
