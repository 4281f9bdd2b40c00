"""The variants as models on the device, with random normal weights made there.

Nothing passes through a file: a Llama of 8 billion parameters would be 16 GB of it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.skeleton import build_skeleton

SHARED = ("model.embed_tokens", "lm_head")
"""What compression leaves alone, held once for all variants on a device."""

SEED = 0


def build(
    inventory: Inventory, dtype: torch.dtype, device: torch.device, like: nn.Module | None = None
) -> nn.Module:
    """The model of ``inventory``, ready to run; embedding and head are those of ``like``.

    Raises :class:`CheckpointError` where transformers cannot build it; torch's out-of-memory
    error passes through.
    """
    model, _ = build_skeleton(inventory, dtype)
    if like is not None:
        for name in SHARED:
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, like.get_submodule(name))
    draw = torch.Generator(device).manual_seed(SEED)
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.is_meta:
                made = nn.Parameter(_weights(parameter.shape, dtype, device, draw), False)
                setattr(module, name, made)
    return model.to(device).eval()


def release(device: torch.device) -> None:
    """Give the memory of models that are no longer named back to the device."""
    import gc

    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _weights(shape: Any, dtype: torch.dtype, device: torch.device, draw: Any) -> torch.Tensor:
    """Normal, of a scale that keeps activations finite; a norm's weights are ones."""
    made = torch.empty(shape, dtype=dtype, device=device)
    if len(shape) < 2:
        return made.fill_(1)
    return made.normal_(0, float(shape[-1]) ** -0.5, generator=draw)
