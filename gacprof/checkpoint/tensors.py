"""Reading tensor data: memory-mapped from files, or from a model in memory.

Each tensor of a file has its own mapping, private and copy-on-write, that is released with the
array: a stream over a checkpoint holds no more than the tensors it keeps, and nothing written to
an array reaches the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gacprof.checkpoint.inventory import Inventory, TensorInfo
from gacprof.checkpoint.scanning import inventory_of_model, scan
from gacprof.core.dtypes import element_type
from gacprof.core.errors import CheckpointError

if TYPE_CHECKING:
    import torch


class TensorReader:
    """The tensors of a checkpoint on disk, by name. See :func:`open_tensors`."""

    def __init__(self, inventory: Inventory) -> None:
        self.inventory = inventory
        self._folder = Path(inventory.folder)

    def __contains__(self, name: str) -> bool:
        return name in self.inventory.tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self.inventory.tensors)

    def info(self, name: str) -> TensorInfo:
        try:
            return self.inventory.tensors[name]
        except KeyError:
            raise CheckpointError(f"{self.inventory.path}: has no tensor {name!r}") from None

    def read(self, name: str) -> np.ndarray[Any, Any]:
        """The tensor as a mapped array. bfloat16 and float8 come as unsigned integers of the
        same width (``core/dtypes.py``); ``info(name).dtype`` says what they are."""
        info = self.info(name)
        element = element_type(info.dtype)
        if info.offset is None:
            raise CheckpointError(f"{self.inventory.path}: {name!r} has no data to read")
        if info.numel == 0:
            return np.empty(info.shape, element.numpy)
        path = self._folder / info.file
        try:
            if info.stride is None:
                return np.memmap(path, element.numpy, "c", info.offset, info.shape)
            span = 1 + sum((n - 1) * s for n, s in zip(info.shape, info.stride, strict=True))
            flat = np.memmap(path, element.numpy, "c", info.offset, (span,))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path}: {name!r} cannot be mapped: {error}") from None
        strides = tuple(s * element.itemsize for s in info.stride)
        return np.lib.stride_tricks.as_strided(flat, info.shape, strides)

    def raw(self, name: str) -> memoryview:
        """The tensor's bytes in row-major order; a view of the mapping where it can be."""
        return np.ascontiguousarray(self.read(name)).reshape(-1).view(np.uint8).data

    def torch(self, name: str) -> torch.Tensor:
        """The tensor in its own dtype, still mapped (copy-on-write). Imports torch."""
        import torch

        dtype = getattr(torch, self.info(name).dtype, None)
        if dtype is None:
            raise CheckpointError(f"this torch has no dtype {self.info(name).dtype}")
        return as_torch(np.asarray(self.read(name)), dtype)


def as_torch(array: np.ndarray[Any, Any], dtype: torch.dtype) -> torch.Tensor:
    """The same memory as a tensor of ``dtype``, of which numpy may know the bits only."""
    import torch

    tensor = torch.from_numpy(array)
    return tensor if tensor.dtype == dtype else tensor.view(dtype)


def open_tensors(source: Inventory | str | Path) -> TensorReader:
    """A reader for the tensors of a scanned or still unscanned checkpoint on disk."""
    inventory = source if isinstance(source, Inventory) else scan(source)
    if inventory.container == "memory":
        raise CheckpointError(f"{inventory.path}: give the model itself, its inventory has no data")
    if inventory.container == "gguf":
        raise CheckpointError(
            f"{inventory.path}: the weights of a GGUF file are quantised or permuted: write it as "
            "a plain folder first (gacprof import-gguf)"
        )
    if not Path(inventory.folder).is_dir():
        raise CheckpointError(
            f"{inventory.path}: its tensors are not on this machine; download it first"
        )
    return TensorReader(inventory)


class ModelReader(TensorReader):
    """The state of a model in memory, read as a checkpoint's tensors are."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(inventory_of_model(model))
        self._state = model.state_dict()

    def read(self, name: str) -> np.ndarray[Any, Any]:
        import torch

        info = self.info(name)
        if info.offset is None:
            raise CheckpointError(f"{self.inventory.path}: {name!r} has no data (meta device)")
        flat = self._state[name].detach().cpu().contiguous().reshape(-1)
        carried = flat.view(torch.uint8).numpy().view(element_type(info.dtype).numpy)
        return np.asarray(carried.reshape(info.shape))


def tensors_of(source: str | Path | Inventory | torch.nn.Module) -> TensorReader:
    """A reader for a checkpoint on disk or a model in memory. Raises :class:`CheckpointError`."""
    if isinstance(source, str | Path | Inventory):
        return open_tensors(source)
    return ModelReader(source)
