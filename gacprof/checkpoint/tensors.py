"""Data of a checkpoint's tensors, mapped into memory.

Each tensor has its own mapping, private and copy-on-write, that is released with it: a stream over
a checkpoint takes no more memory than the tensors it keeps, and nothing written to a tensor reaches
the file.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from gacprof.checkpoint.inventory import Inventory
from gacprof.core.dtypes import BY_NAME
from gacprof.core.errors import CheckpointError


def read_tensor(inventory: Inventory, name: str, rows: slice = slice(None)) -> torch.Tensor:
    """Return a tensor of a checkpoint on disk, or some of its rows, in its stored dtype, still
    mapped.

    Raises :class:`CheckpointError` where its file is not on this machine; ``KeyError`` for a name
    that the checkpoint does not have.
    """
    info = inventory.tensors[name]
    dtype = getattr(torch, info.dtype)
    if not info.numel:
        return torch.empty(info.shape, dtype=dtype)
    strides = info.stride or torch.empty(info.shape, device="meta").stride()
    shape, skipped = info.shape, 0
    if shape:
        first, last, _ = rows.indices(shape[0])
        shape, skipped = (last - first, *shape[1:]), first * strides[0]
    end = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    itemsize = BY_NAME[info.dtype].itemsize
    path = Path(inventory.folder) / info.file
    if not path.is_file():
        raise CheckpointError(f"{path} is not on this machine: download the checkpoint first")
    offset = (info.offset or 0) + skipped * itemsize
    data = np.memmap(path, np.uint8, "c", offset, ((end + 1) * itemsize,))
    return torch.from_numpy(data).view(dtype).as_strided(shape, strides)
