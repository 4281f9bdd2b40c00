"""What modules say of their sizes beside their weights, kept true when the weights change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn


def can_be_resized(module: nn.Module) -> bool:
    """Whether :func:`tell_sizes` knows this kind of layer."""
    return isinstance(module, nn.Linear | nn.Embedding) or is_conv1d(module)


def is_conv1d(module: nn.Module) -> bool:
    """Whether this is GPT-2's linear layer, which keeps [in, out] (transformers/pytorch_utils)."""
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf")


def tell_sizes(module: nn.Module) -> None:
    """Set what the layer says of its sizes to the shape of its weight."""
    layer: Any = module
    if isinstance(module, nn.Linear):
        layer.out_features, layer.in_features = module.weight.shape
    elif isinstance(module, nn.Embedding):
        layer.num_embeddings, layer.embedding_dim = module.weight.shape
    elif is_conv1d(module):
        layer.nx, layer.nf = layer.weight.shape


def tell_ranks(model: nn.Module, name: str, before: Sequence[int], after: Sequence[int]) -> None:
    """Set what the factored module ``name`` says of its ranks, if there is one of that name.

    Ours say ``rank`` and ``ranks``, ASVD's ``truncation_rank``, PaLU's ``ranks``.
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


def tell_width(model: nn.Module, name: str, before: int, after: int) -> None:
    """Set what the MLP ``name`` says of its width (transformers' MLPs do, to no effect)."""
    try:
        module: Any = model.get_submodule(name)
    except AttributeError:
        return
    for attribute in ("intermediate_size", "ffn_dim"):
        if getattr(module, attribute, None) == before:
            setattr(module, attribute, after)
