"""Layers that say their sizes beside their weights, kept true when the weights change."""

from __future__ import annotations

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
