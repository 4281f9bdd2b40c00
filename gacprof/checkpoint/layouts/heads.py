"""The heads of a decoder block's attention.

A rank is never a head_dim: factored q, k, v are counted by what they give out, which is what SDPA
sees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gacprof.checkpoint.inventory import AttentionHeads, Contents
from gacprof.checkpoint.layouts.configs import count, part_of
from gacprof.checkpoint.layouts.linear import Linear
from gacprof.checkpoint.layouts.names import tower_of


def find_attentions(contents: Contents, linears: Sequence[Linear]) -> list[AttentionHeads]:
    """Return one attention for each layer whose heads its shapes and config tell."""
    blocks: dict[str, dict[str, int]] = {}
    layers: dict[str, int] = {}
    for linear in linears:
        role = "latent" if linear.name.endswith(".kv_b_proj") else linear.role
        if role in ("q", "k", "v", "qkv", "latent") and linear.layer is not None:
            name = linear.name.rpartition(".")[0]
            layers[name] = linear.layer
            blocks.setdefault(name, {})[role] = linear.out_features
    attentions = []
    for name, sizes in blocks.items():
        _, config = part_of(contents.config, tower_of(name))
        facts = {**config, **contents.attributes.get(name, {})}
        attention = _attention(layers[name], facts, sizes)
        if min(attention.heads, attention.kv_heads) > 0:
            attentions.append(attention)
    return attentions


def _attention(layer: int, config: Mapping[str, Any], sizes: Mapping[str, int]) -> AttentionHeads:
    """Heads of q and k of these ``sizes``, or of one weight for q, k and v; 0 where unknown.

    Shapes count before the config: a pruned layer has fewer heads, and Falcon's config names 71 kv
    heads where it has one. A head_dim that the config leaves out is hidden size over heads,
    transformers' default.
    """
    heads = count(config, "num_heads", "num_attention_heads", "n_head")
    kv_heads = count(config, "num_key_value_heads", "num_kv_heads") or heads
    if "latent" in sizes:  # DeepSeek: q and k have a rotated and an unrotated part for each head
        head_dim = count(config, "qk_nope_head_dim") + count(config, "qk_rope_head_dim")
        return AttentionHeads(layer, heads, heads, head_dim)
    hidden = count(config, "hidden_size", "n_embd", "d_model")
    head_dim, rest = divmod(hidden, count(config, "num_attention_heads", "n_head") or heads or 1)
    head_dim = count(config, "head_dim") or (0 if rest or not heads else head_dim)
    if "qkv" in sizes:
        kv_heads, rest = divmod(sizes["qkv"] - heads * head_dim, 2 * head_dim or 1)
        return AttentionHeads(layer, heads, 0 if rest else kv_heads, head_dim)
    q, k = sizes.get("q", 0), sizes.get("k", 0)
    if head_dim and q % head_dim == 0 and k % head_dim == 0:
        return AttentionHeads(layer, q // head_dim, k // head_dim, head_dim)
    if heads and q % heads == 0 and q * kv_heads == k * heads:
        return AttentionHeads(layer, heads, kv_heads, q // heads)
    return AttentionHeads(layer, 0, 0, 0)
