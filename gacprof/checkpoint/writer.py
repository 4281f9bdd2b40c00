"""Write checkpoints: shards front to back, with one block in memory at a time."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.tensors import blocks_of, read_tensor
from gacprof.core.dtypes import BY_NAME
from gacprof.core.errors import CheckpointError
from gacprof.core.files import write_json

BLOCK_BYTES = 1 << 21  # copying 2 MB at a time is as fast as cp
INDEX = "model.safetensors.index.json"
RECORD = "gacprof.json"  # what a new folder says of where it comes from


@dataclass(frozen=True)
class OutputTensor:
    """A tensor to be written with the shard of the ``stored`` one, in blocks along its axis 0."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    stored: str
    blocks: Callable[[], Iterable[torch.Tensor]]


def write_weights(folder: Path, inventory: Inventory, tensors: Iterable[OutputTensor]) -> None:
    """Write tensors into a folder, sharded as the checkpoint that they were made of."""
    shards: dict[str, list[OutputTensor]] = {}
    for tensor in tensors:
        shards.setdefault(shard_name(inventory, tensor.stored), []).append(tensor)
    weight_map: dict[str, str] = {}
    total_size = 0
    for file, part in shards.items():
        weight_map |= {tensor.name: file for tensor in part}
        if file.endswith(".pt"):
            state = {}
            for tensor in part:
                flat = torch.cat([block.flatten().clone() for block in tensor.blocks()])
                state[tensor.name] = flat.view(tensor.shape)
            total_size += sum(value.nbytes for value in state.values())
            torch.save(state, folder / file)
        else:
            metadata = {"format": "pt", **inventory.metadata.get(file, {})}
            total_size += write_safetensors(folder / file, part, metadata)
    if len(shards) > 1 or inventory.has_index:
        index = {"metadata": {"total_size": total_size}, "weight_map": weight_map}
        write_json(folder / INDEX, index)


def write_safetensors(
    path: Path, tensors: Iterable[OutputTensor], metadata: Mapping[str, str]
) -> int:
    """Write one file, and return how many bytes its tensors have.

    As the format's own library has it, wider types come first, so that every tensor is aligned.
    Raises :class:`CheckpointError` where elements are not those that shape and type say.
    """
    ordered = sorted(tensors, key=lambda tensor: (-BY_NAME[tensor.dtype].itemsize, tensor.name))
    header: dict[str, object] = {"__metadata__": metadata}
    end = 0
    ends = []
    for tensor in ordered:
        element = BY_NAME[tensor.dtype]
        start = end
        end += torch.Size(tensor.shape).numel() * element.itemsize
        ends.append(end)
        header[tensor.name] = {
            "dtype": element.code,
            "shape": tensor.shape,
            "data_offsets": (start, end),
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    # So that data start at a multiple of 8 bytes, as the format wants it
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        first = file.tell()
        for tensor, end in zip(ordered, ends, strict=True):
            for block in tensor.blocks():
                file.write(block.contiguous().view(-1).view(torch.uint8).numpy().data)
            # A block of a wrong shape would shift all tensors behind it
            if file.tell() != first + end:
                raise CheckpointError(
                    f"{tensor.name} has other elements than {tensor.dtype} {list(tensor.shape)}"
                )
    return end


def read_blocks(
    inventory: Inventory, name: str, rows: range | None = None
) -> Iterator[torch.Tensor]:
    """Yield rows of a stored tensor in blocks, each valid until the next one."""
    info = inventory.tensors[name]
    if not info.shape:
        yield read_tensor(inventory, name)
        return
    itemsize = BY_NAME[info.dtype].itemsize
    for _, block in blocks_of(inventory, name, rows, BLOCK_BYTES // itemsize):
        yield block


def shard_name(inventory: Inventory, stored: str) -> str:
    """Return the output's file for what was made of a stored tensor; all lie in one folder."""
    source = Path(inventory.tensors[stored].file)
    if source.suffix == ".safetensors" or inventory.layout == "slicegpt":
        return source.name
    if "-of-" in source.name:
        return source.with_suffix(".safetensors").name.removeprefix("pytorch_")
    return "model.safetensors"


def check_output(inventory: Inventory, out: Path) -> None:
    """Raise an error for an output that is there already, or would lie in the checkpoint."""
    if os.path.lexists(out):
        raise FileExistsError(f"{out} exists: name a folder that does not")
    if out.resolve().is_relative_to(Path(inventory.folder).resolve()):
        raise CheckpointError(f"{out} lies in the checkpoint {inventory.path}: name another")
