"""Layers of torch models: chains of factors, and the sizes kept beside the weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from gacprof.checkpoint.inventory import Gemm, Module


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


def can_be_resized(module: nn.Module) -> bool:
    """Whether :func:`set_sizes` knows this kind of layer."""
    return isinstance(module, nn.Linear | nn.Embedding) or is_conv1d(module)


def is_conv1d(module: nn.Module) -> bool:
    """Whether this is GPT-2's linear layer, which keeps [in, out] (transformers/pytorch_utils)."""
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf")


def set_sizes(module: nn.Module) -> None:
    """Set the sizes that the layer keeps beside its weight to the shape of its weight."""
    layer: Any = module
    if isinstance(module, nn.Linear):
        layer.out_features, layer.in_features = module.weight.shape
    elif isinstance(module, nn.Embedding):
        layer.num_embeddings, layer.embedding_dim = module.weight.shape
    elif is_conv1d(module):
        layer.nx, layer.nf = layer.weight.shape


def set_ranks(model: nn.Module, name: str, before: Sequence[int], after: Sequence[int]) -> None:
    """Set the ranks that the factored module ``name`` keeps, if there is one of that name.

    Ours keep ``rank`` and ``ranks``, ASVD's ``truncation_rank``, PaLU's ``ranks``.
    """
    try:
        module: Any = model.get_submodule(name)
    except AttributeError:
        return  # factors that stand beside each other, as SVD-LLM's
    for attribute in ("rank", "truncation_rank"):
        if [getattr(module, attribute, None)] == list(before):
            setattr(module, attribute, after[0])
    if list(getattr(module, "ranks", None) or ()) == list(before):
        module.ranks = list(after)


def set_width(model: nn.Module, name: str, before: int, after: int) -> None:
    """Set the width that the MLP ``name`` keeps (transformers' MLPs do, to no effect)."""
    try:
        module: Any = model.get_submodule(name)
    except AttributeError:
        return
    for attribute in ("intermediate_size", "ffn_dim"):
        if getattr(module, attribute, None) == before:
            setattr(module, attribute, after)
