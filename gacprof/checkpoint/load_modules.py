"""The layers that no transformers class has: chains of factors, and SliceGPT's blocks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import nn

from gacprof.checkpoint.inventory import Gemm, Module
from gacprof.core.errors import CheckpointError


class FactorPair(nn.Module):
    """``y = outer(inner(x))`` with inner [r, in] and outer [out, r]; a bias belongs to outer."""

    def __init__(self, inner: Gemm, outer: Gemm) -> None:
        super().__init__()
        self.in_features, self.out_features, self.rank = inner.K, outer.N, inner.N
        self.inner = nn.Linear(inner.K, inner.N, bias=inner.bias)
        self.outer = nn.Linear(outer.K, outer.N, bias=outer.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.outer(self.inner(x))
        return y

    def extra_repr(self) -> str:
        return f"rank={self.rank}"


class GroupedFactors(nn.Module):
    """One inner [Σrᵢ, in] for all groups; outer ``i`` [out/G, rᵢ] reads its own section.

    The groups' outputs stand one after the other, so the result has the full width.
    """

    def __init__(self, inner: Gemm, outer: Sequence[Gemm]) -> None:
        super().__init__()
        self.ranks = [gemm.K for gemm in outer]
        self.in_features, self.out_features = inner.K, sum(gemm.N for gemm in outer)
        self.inner = nn.Linear(inner.K, inner.N, bias=inner.bias)
        self.outer = nn.ModuleList(nn.Linear(g.K, g.N, bias=g.bias) for g in outer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        latents = self.inner(x).split(self.ranks, dim=-1)
        return torch.cat([u(z) for u, z in zip(self.outer, latents, strict=True)], dim=-1)

    def extra_repr(self) -> str:
        return f"ranks={self.ranks}"


def factors_of(module: Module) -> FactorPair | GroupedFactors:
    """The layer for a factored or grouped module of an inventory, on the current device."""
    inner, *outer = module.gemms
    if len(outer) == 1:
        return FactorPair(inner, outer[0])
    return GroupedFactors(inner, outer)


def parameter_names(module: Module) -> dict[str, str]:
    """File tensor name → parameter name, for the weights and biases of a factored module."""
    inner, *outer = module.gemms
    places = {inner.weight: f"{module.name}.inner"}
    for i, gemm in enumerate(outer):
        places[gemm.weight] = f"{module.name}.outer" + (f".{i}" if len(outer) > 1 else "")
    names = {}
    for gemm in module.gemms:
        names[gemm.weight] = f"{places[gemm.weight]}.weight"
        if gemm.bias:
            names[gemm.weight.removesuffix(".weight") + ".bias"] = f"{places[gemm.weight]}.bias"
    return names


class SlicedNorm(nn.Module):
    """SliceGPT's RMSNorm: no weights, and the mean is over the *original* hidden size."""

    def __init__(self, hidden_size: int, epsilon: float) -> None:
        super().__init__()
        self.hidden_size, self.epsilon = hidden_size, epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        mean = wide.square().sum(-1, keepdim=True) / self.hidden_size
        return (wide * torch.rsqrt(mean + self.epsilon)).to(x.dtype)

    def extra_repr(self) -> str:
        return f"hidden_size={self.hidden_size}, epsilon={self.epsilon}"


@cache
def sliced_layer(base: Any) -> Any:
    """``base`` (a pre-norm decoder layer of transformers) with SliceGPT's shortcut matrices.

    What the residual carries past attention and MLP is multiplied by ``attn_shortcut_Q`` and
    ``mlp_shortcut_Q``, [in, out] each.
    """
    returns_tuple = _returns_tuple(base)

    class SlicedLayer(base):
        def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if args:
                raise TypeError("SlicedLayer takes hidden_states and keyword arguments")
            x = self.input_layernorm(hidden_states)
            attended = self.self_attn(hidden_states=x, **kwargs)[0]
            hidden_states = hidden_states @ self.attn_shortcut_Q + attended
            x = self.post_attention_layernorm(hidden_states)
            hidden_states = hidden_states @ self.mlp_shortcut_Q + self.mlp(x)
            return (hidden_states,) if returns_tuple else hidden_states

    return SlicedLayer


def _returns_tuple(base: Any) -> bool:
    """Whether this transformers' layer hands back a tuple (it did until 2025) or a tensor.

    Its forward is run on a layer whose parts do nothing. That also shows that it is the kind of
    layer whose parts we know.
    """

    class Nothing(nn.Module):
        def forward(self, x: torch.Tensor | None = None, **kwargs: Any) -> Any:
            return (kwargs["hidden_states"], None) if x is None else x

    probe = base.__new__(base)
    nn.Module.__init__(probe)
    for part in ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp"):
        probe.add_module(part, Nothing())
    try:
        out = base.forward(probe, torch.ones(1, 1, 1, device="cpu"))
    except Exception:  # whatever a class of unknown make raises
        out = None
    value = out[0] if isinstance(out, tuple) else out
    if not isinstance(value, torch.Tensor) or float(value.sum()) != 4.0:
        raise CheckpointError(
            f"sliced layers of {base.__name__} are not known here: only Llama-like ones "
            "(norm, attention, add, norm, MLP, add) are"
        )
    return isinstance(out, tuple)
