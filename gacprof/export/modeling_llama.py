"""A Llama whose layers have the factors, widths and heads that config.json says.

``factor_ranks``   linear layer -> the rank of its factors, or the ranks of its groups
``layer_widths``   the MLP's width in every layer
``layer_heads``    [query heads, key-value heads] in every layer
``layer_splits``   pattern of a linear layer -> how tensor-parallel ranks split it

Only the base model differs from transformers' own, so attention backends, caches and generation
are its. Written by gacprof export; needs torch and transformers >= 4.56.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, LlamaModel


class GacprofLlamaConfig(LlamaConfig):
    model_type = "gacprof_llama"

    def __init__(
        self,
        factor_ranks: dict[str, Any] | None = None,
        layer_widths: list[int] | None = None,
        layer_heads: list[list[int]] | None = None,
        layer_splits: dict[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        # transformers refuses a hidden size that is no multiple of the heads, as a pruned model's
        # need not be: heads are set once the config is made
        keys = {"num_attention_heads", "num_key_value_heads"} & kwargs.keys()
        super().__init__(**{**kwargs, **dict.fromkeys(keys, 1)})
        for key in keys:
            setattr(self, key, kwargs[key])
        self.factor_ranks = factor_ranks or {}
        self.layer_widths = layer_widths or [self.intermediate_size] * self.num_hidden_layers
        both = [self.num_attention_heads, self.num_key_value_heads]
        self.layer_heads = layer_heads or [both] * self.num_hidden_layers
        self.layer_splits = layer_splits or {}
        self.base_model_tp_plan = self.layer_splits


class LowRankLinear(nn.Module):
    """``y = outer(inner(x))``, inner [rank, in] and outer [out, rank]."""

    def __init__(self, n_in: int, n_out: int, rank: int, bias: bool) -> None:
        super().__init__()
        self.inner = nn.Linear(n_in, rank, bias=False)
        self.outer = nn.Linear(rank, n_out, bias=bias)

    def forward(self, x: torch.Tensor) -> Any:
        return self.outer(self.inner(x))


class GroupedLowRankLinear(nn.Module):
    """One inner for all groups; each outer reads its own stretch and writes its own outputs."""

    def __init__(self, n_in: int, n_out: int, ranks: list[int], bias: bool) -> None:
        super().__init__()
        self.ranks = ranks
        self.inner = nn.Linear(n_in, sum(ranks), bias=False)
        self.outer = nn.ModuleList(nn.Linear(r, n_out // len(ranks), bias=bias) for r in ranks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.inner(x).split(self.ranks, dim=-1)
        return torch.cat([outer(part) for outer, part in zip(self.outer, parts)], dim=-1)  # noqa: B905


def linear(n_in: int, n_out: int, rank: Any, bias: bool) -> nn.Module:
    if rank is None:
        return nn.Linear(n_in, n_out, bias=bias)
    kind = GroupedLowRankLinear if isinstance(rank, list) else LowRankLinear
    return kind(n_in, n_out, rank, bias)


def fit(model: Any, config: Any) -> None:
    """Give the linear layers of the base model the sizes that ``config`` says."""
    for i, layer in enumerate(model.layers):
        heads, kv_heads = config.layer_heads[i]
        q, kv = (n * layer.self_attn.head_dim for n in (heads, kv_heads))
        width = config.layer_widths[i]
        layer.self_attn.num_key_value_groups = heads // kv_heads
        n_out = {"q_proj": q, "k_proj": kv, "v_proj": kv, "gate_proj": width, "up_proj": width}
        n_in = {"o_proj": q, "down_proj": width}
        for part in ("self_attn", "mlp"):
            module, factored = getattr(layer, part), ""
            for name, old in list(module.named_children()):
                if isinstance(old, nn.Linear):
                    rank = config.factor_ranks.get(f"model.layers.{i}.{part}.{name}")
                    factored += "" if rank is None else f"_{name}"
                    sizes = n_in.get(name, old.in_features), n_out.get(name, old.out_features)
                    setattr(module, name, linear(*sizes, rank, old.bias is not None))
            if factored:
                module.__class__ = variant(module.__class__, factored)


@cache
def variant(base: type, factored: str) -> type:
    """A class of its own for modules in which these layers are factored."""
    # engines that rewrite modules (vLLM's Transformers backend) look at one module of every class
    return type(base.__name__ + factored, (base,), {"__module__": __name__})


class GacprofLlamaModel(LlamaModel):
    config_class = GacprofLlamaConfig

    def __init__(self, config: GacprofLlamaConfig) -> None:
        super().__init__(config)
        fit(self, config)


class GacprofLlamaForCausalLM(LlamaForCausalLM):
    config_class = GacprofLlamaConfig

    def __init__(self, config: GacprofLlamaConfig) -> None:
        super().__init__(config)
        self.model = GacprofLlamaModel(config)
        rank = config.factor_ranks.get("lm_head")
        if rank is not None:
            self.lm_head = linear(config.hidden_size, config.vocab_size, rank, bias=False)
        self.post_init()
