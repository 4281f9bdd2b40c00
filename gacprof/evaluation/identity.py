"""Whether two loaded models are the same to the byte: then no timing can tell them apart."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import torch
from torch import nn


def identical(a: nn.Module, b: nn.Module) -> bool:
    """Same classes, same config, same tensors by name, dtype, shape, layout and bytes.

    Compared tensor by tensor, without copies, up to the first difference. A model whose
    ``forward`` was replaced, that has hooks or is compiled is identical only to itself.
    """
    if a is b:
        return True
    if any(_altered(module) for module in chain(a.modules(), b.modules())):
        return False
    return _structure(a) == _structure(b) and all(
        name == other and _same_bytes(x, y)
        for (name, x), (other, y) in zip(_tensors(a), _tensors(b), strict=True)
    )


def _altered(module: nn.Module) -> bool:
    hooks = (module._forward_hooks, module._forward_pre_hooks)
    compiled = getattr(module, "_compiled_call_impl", None) is not None
    return compiled or "forward" in vars(module) or any(hooks)


def _structure(model: nn.Module) -> tuple[Any, ...]:
    classes = tuple((name, type(module)) for name, module in model.named_modules())
    tensors = tuple((name, t.dtype, t.shape, t.stride()) for name, t in _tensors(model))
    return classes, tensors, _config(model)


def _config(model: nn.Module) -> dict[str, Any]:
    """The config, without where it was read from; attention's implementation with it."""
    config: Any = getattr(model, "config", None)
    told = config.to_dict() if hasattr(config, "to_dict") else {}
    left = {k: v for k, v in told.items() if k not in ("_name_or_path", "transformers_version")}
    return left | {"attention": getattr(config, "_attn_implementation", None)}


def _tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    return chain(model.named_parameters(), model.named_buffers())


def _same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    """NaN is equal to itself here, and −0 is not 0."""
    if a.device != b.device:
        return False
    flat = (t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (a, b))
    return torch.equal(*flat)
