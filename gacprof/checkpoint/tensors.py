"""Read a checkpoint's tensors, each mapped into memory by itself and released with it.

The mapping is private and copy-on-write: nothing written to a tensor reaches the file.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from gacprof.checkpoint.inventory import Inventory, TensorInfo
from gacprof.core.dtypes import BY_NAME
from gacprof.core.errors import CheckpointError

BLOCK = 1 << 18  # numbers of a block: it stays in a processor's cache


def read_tensor(inventory: Inventory, name: str, rows: slice = slice(None)) -> torch.Tensor:
    """Return a tensor of a checkpoint on disk, or some of its rows, in its stored dtype, mapped."""
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
    path = file_of(inventory, info)
    offset = (info.offset or 0) + skipped * itemsize
    data = np.memmap(path, np.uint8, "c", offset, ((end + 1) * itemsize,))
    return torch.from_numpy(data).view(dtype).as_strided(shape, strides)


def file_of(inventory: Inventory, info: TensorInfo) -> Path:
    """Return the file that holds a tensor."""
    path = Path(inventory.folder) / info.file
    if not path.is_file():
        raise CheckpointError(f"{path} is not on this machine: download the checkpoint first")
    return path


def blocks_of(
    inventory: Inventory, name: str, rows: range | None = None, numbers: int = BLOCK
) -> Iterator[tuple[slice, torch.Tensor]]:
    """Yield rows of a tensor with their place, in blocks that are valid until the next one."""
    info = inventory.tensors[name]
    rows = range(info.shape[0]) if rows is None else rows
    row_numel = max(1, info.numel // max(1, info.shape[0]))
    step = max(1, numbers // row_numel)
    firsts = range(rows.start, rows.stop, step)
    places = [slice(first, min(first + step, rows.stop)) for first in firsts]
    if info.stride or not info.numel:
        yield from ((place, read_tensor(inventory, name, place)) for place in places)
        return
    # Read into one buffer: a mapping costs a page fault every 4 KB, several times the sums.
    buffer = torch.empty(step, *info.shape[1:], dtype=getattr(torch, info.dtype))
    with file_of(inventory, info).open("rb") as file:
        file.seek((info.offset or 0) + rows.start * row_numel * buffer.itemsize)
        for place in places:
            block = buffer[: place.stop - place.start]
            if file.readinto(block.view(-1).view(torch.uint8).numpy().data) < block.nbytes:
                raise CheckpointError(f"{info.file} ends within {name}: fetch it again")
            yield place, block


def energies(inventory: Inventory, name: str, axis: int) -> NDArray[np.float64]:
    """Return the sum of squares of a matrix at each index of an axis, read in blocks."""
    count, columns = inventory.tensors[name].shape
    sums = np.zeros(columns if axis else count)
    for rows, block in blocks_of(inventory, name):
        squares = block.float().square_().sum(1 - axis).numpy()
        if axis:
            sums += squares
        else:
            sums[rows] = squares
    return sums
