"""The tensors of a model in memory, read as a checkpoint's are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gacprof.checkpoint.dtypes import element_type
from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.memory import inventory_of_model
from gacprof.checkpoint.tensors import TensorReader, open_tensors
from gacprof.core.errors import CheckpointError

if TYPE_CHECKING:
    import torch


class ModelReader(TensorReader):
    """The state of a model in memory, read as a checkpoint's tensors are."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(inventory_of_model(model))
        self._state = model.state_dict()

    def read(self, name: str) -> np.ndarray[Any, Any]:
        info = self.info(name)
        if info.offset is None:
            raise CheckpointError(f"{self.inventory.path}: {name!r} has no data (meta device)")
        return _to_numpy(self._state[name], element_type(info.dtype).numpy)


def tensors_of(source: str | Path | Inventory | torch.nn.Module) -> TensorReader:
    """A reader for a checkpoint on disk or a model in memory. Raises :class:`CheckpointError`."""
    if isinstance(source, str | Path | Inventory):
        return open_tensors(source)
    return ModelReader(source)


def _to_numpy(tensor: torch.Tensor, carrier: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """The tensor's elements on the CPU, in numpy's carrier of their type."""
    import torch

    flat = tensor.detach().cpu().contiguous()
    if flat.dtype in (torch.float64, torch.float32, torch.float16):
        return np.asarray(flat.numpy())
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[carrier.itemsize]
    return np.asarray(flat.view(whole).numpy()).view(carrier)
