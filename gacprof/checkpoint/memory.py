"""An inventory of a model that is already in memory, from its state dict and config."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from gacprof.checkpoint.inventory import Inventory, TensorInfo
from gacprof.checkpoint.layouts import Contents, recognise
from gacprof.checkpoint.scanning import fingerprint, scan
from gacprof.core.errors import CheckpointError

if TYPE_CHECKING:
    import torch


def inventory_for(source: str | Path | Inventory | torch.nn.Module) -> Inventory:
    """The inventory of a checkpoint's path or hub id, of a model in memory, or as given."""
    if isinstance(source, Inventory):
        return source
    return scan(source) if isinstance(source, str | Path) else inventory_of_model(source)


def inventory_of_model(model: torch.nn.Module, *, path: str | None = None) -> Inventory:
    """What :func:`scan` would say of ``model`` if it were saved. No tensor data is read.

    Raises :class:`CheckpointError` for something that has no state dict of tensors.
    """
    try:
        state: dict[str, Any] = dict(model.state_dict())
    except AttributeError:
        raise CheckpointError(
            f"a {type(model).__name__} is not a model with a state dict"
        ) from None
    tensors = {name: _info(name, tensor) for name, tensor in state.items() if _is_tensor(tensor)}
    if not tensors:
        raise CheckpointError(f"the {type(model).__name__} holds no tensors")
    config = _config(getattr(model, "config", None))
    contents = Contents(tensors, config)
    layout = recognise(contents)
    findings = layout.describe(contents)
    return Inventory(
        path=path or f"{type(model).__name__} in memory",
        layout=layout.name,
        container="memory",
        config=config,
        tensors=tensors,
        modules=findings.modules,
        dims=findings.dims,
        attentions=findings.attentions,
        fingerprint=fingerprint(tensors),
        notes=findings.notes,
    )


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype") and hasattr(value, "element_size")


def _info(name: str, tensor: Any) -> TensorInfo:
    """``offset`` is the address, so that one tensor under two names is seen to be one."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    address = None if tensor.is_meta else tensor.data_ptr()
    nbytes = tensor.numel() * tensor.element_size()
    stride = None if tensor.is_contiguous() else tuple(tensor.stride())
    return TensorInfo(name, tuple(tensor.shape), dtype, "<memory>", address, nbytes, stride)


def _config(config: Any) -> dict[str, Any]:
    if config is None:
        return {}
    made = config.to_dict() if hasattr(config, "to_dict") else config
    return dict(made) if isinstance(made, dict) else {}
