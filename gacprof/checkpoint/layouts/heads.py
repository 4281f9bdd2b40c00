"""The heads of a decoder block's attention.

A rank is never a head_dim: factored q, k, v are counted by what they give out, which is what SDPA
sees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gacprof.checkpoint.inventory import AttentionHeads, Contents
from gacprof.checkpoint.layouts.configs import config_of_part, count
from gacprof.checkpoint.layouts.linear import Linear
from gacprof.checkpoint.layouts.names import layer_of, parent_of, role_of


def find_attentions(contents: Contents, linears: Sequence[Linear]) -> list[AttentionHeads]:
    """Return one attention for each layer whose heads its shapes and config tell."""
    blocks: dict[str, dict[str, int]] = {}
    for linear in linears:
        role = "latent" if linear.name.endswith(".kv_b_proj") else role_of(linear.name)
        if role in ("q", "k", "v", "qkv", "latent") and layer_of(linear.name) is not None:
            blocks.setdefault(parent_of(linear.name), {})[role] = linear.out_features
    attentions = []
    for name, sizes in blocks.items():
        config = {**config_of_part(contents.config, name), **contents.attributes.get(name, {})}
        heads, kv_heads, head_dim = _heads(config, sizes)
        if kv_heads:
            attentions.append(AttentionHeads(layer_of(name) or 0, heads, kv_heads, head_dim))
    return attentions


def _heads(config: Mapping[str, Any], sizes: Mapping[str, int]) -> tuple[int, int, int]:
    """Heads, key-value heads and head_dim of q and k of these ``sizes``, or of one weight for q, k
    and v; zeros where they are not known. Shapes count before the config: a pruned layer has fewer
    heads, and Falcon's config names 71 kv heads where it has one."""
    heads = count(config, "num_heads", "num_attention_heads", "n_head") or 0
    kv_heads = count(config, "num_key_value_heads", "num_kv_heads") or heads
    head_dim = count(config, "head_dim") or _even_head_dim(config)
    q, k, qkv = (sizes.get(role, 0) for role in ("q", "k", "qkv"))
    if "latent" in sizes:  # DeepSeek: q and k have a rotated and an unrotated part for each head
        head_dim = sum(count(config, key) or 0 for key in ("qk_nope_head_dim", "qk_rope_head_dim"))
        return heads, heads, head_dim
    if qkv and head_dim and qkv % (2 * head_dim) == heads * head_dim % (2 * head_dim):
        return heads, max(0, qkv // head_dim - heads) // 2, head_dim
    if q and k and head_dim and q % head_dim == 0 == k % head_dim:
        return q // head_dim, k // head_dim, head_dim
    if k and heads and q * kv_heads == k * heads and q % heads == 0:
        return heads, kv_heads, q // heads
    return 0, 0, 0


def _even_head_dim(config: Mapping[str, Any]) -> int:
    """Hidden size over heads, transformers' default."""
    hidden = count(config, "hidden_size", "n_embd", "d_model") or 0
    heads = count(config, "num_attention_heads", "n_head", "num_heads")
    return 0 if not heads or hidden % heads else hidden // heads
