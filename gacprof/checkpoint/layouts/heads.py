"""The heads of a decoder block's attention.

A rank is never a head_dim: factored q, k, v are counted by what they give out, which is what SDPA
sees.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from typing import Any

from gacprof.checkpoint.inventory import AttentionHeads, Contents
from gacprof.checkpoint.layouts.configs import config_of_part, count
from gacprof.checkpoint.layouts.linear import Linear
from gacprof.checkpoint.layouts.names import layer_of, parent_of, role_of


def find_attentions(contents: Contents, linears: Sequence[Linear]) -> list[AttentionHeads]:
    """Return one attention for each layer that has q and k, or a fused qkv, and known heads."""
    blocks: dict[str, dict[str, Linear]] = {}
    for linear in linears:
        role = role_of(linear.name)
        if role in ("q", "k", "qkv") and layer_of(linear.name) is not None:
            blocks.setdefault(parent_of(linear.name), {})[role] = linear
    attentions = _latent(contents, linears)
    for name, parts in blocks.items():
        whole = config_of_part(contents.config, name)
        config: Mapping[str, Any] = ChainMap(dict(contents.attributes.get(name, {})), dict(whole))
        heads: tuple[int, int, int] | None = None
        if "qkv" in parts:
            heads = _fused_heads(config, parts["qkv"].out_features)
        elif {"q", "k"} <= parts.keys():
            heads = _heads(config, parts["q"].out_features, parts["k"].out_features)
        if heads:
            attentions.append(AttentionHeads(layer_of(name) or 0, *heads))
    return sorted(attentions, key=lambda attention: attention.layer)


def _latent(contents: Contents, linears: Sequence[Linear]) -> list[AttentionHeads]:
    """DeepSeek's latent attention: q and k have a rotated and an unrotated part for each head."""
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


def _heads(config: Mapping[str, Any], q: int, k: int) -> tuple[int, int, int] | None:
    """Heads, key-value heads and head_dim of q and k of these sizes, by shape first."""
    head_dim = _head_dim(config)
    if head_dim and q % head_dim == 0 and k % head_dim == 0:
        return q // head_dim, k // head_dim, head_dim
    heads = count(config, "num_heads", "num_attention_heads", "n_head")
    kv_heads = count(config, "num_key_value_heads", "num_kv_heads") or heads
    if heads and kv_heads and q % heads == 0 and k == q // heads * kv_heads:
        return heads, kv_heads, q // heads
    return None


def _fused_heads(config: Mapping[str, Any], size: int) -> tuple[int, int, int] | None:
    """The same of q, k and v in one weight: Falcon's config names 71 kv heads where it has one."""
    heads, head_dim = count(config, "num_heads", "num_attention_heads", "n_head"), _head_dim(config)
    if not heads or not head_dim:
        return None
    kv_heads, rest = divmod(size - heads * head_dim, 2 * head_dim)
    return None if rest or kv_heads < 1 else (heads, kv_heads, head_dim)


def _head_dim(config: Mapping[str, Any]) -> int | None:
    """The config's head_dim, else hidden size over heads (transformers' default)."""
    hidden = count(config, "hidden_size", "n_embd", "d_model")
    heads = count(config, "num_attention_heads", "n_head", "num_heads")
    is_even = hidden and heads and hidden % heads == 0
    return count(config, "head_dim") or (hidden // heads if is_even else None)
