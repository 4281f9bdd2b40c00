"""The folder of a realigned checkpoint: weights shard by shard, index, configs, tokenizer, record.

safetensors keep their files' names. A pickled checkpoint becomes safetensors with the same tensor
names, since a pickled model could only be rebuilt by importing what it names; SliceGPT's own
loader wants its ``.pt``, which is a plain state dict and stays one.
"""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import save_file

from gacprof.checkpoint.config import mirrored_files
from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.tensors import read_tensor
from gacprof.core.files import write_json
from gacprof.realigning.changes import NewCheckpoint, NewTensor
from gacprof.realigning.values import NewValues

INDEX = "model.safetensors.index.json"
RECORD = "gacprof.json"
SCHEMA = "gacprof.realigned/2"


def write_checkpoint(new: NewCheckpoint, folder: Path) -> None:
    """Write everything that belongs to the new checkpoint into an empty folder.

    The record says where it comes from: ``resized`` are [old size, new size, method] by dim (see
    :data:`~gacprof.realigning.changes.Method`), ``merged`` modules whose factors became one weight.
    """
    inventory = new.inventory
    write_weights(new, folder)
    record = {
        "schema": SCHEMA,
        "source": inventory.path,
        "fingerprint": inventory.fingerprint,
        "resized": {c.dim.name: (c.dim.size, c.size, c.method) for c in new.changes},
        "merged": [module.name for module in new.merged],
    }
    for name, content in {**mirrored_files(inventory, new.sizes), RECORD: record}.items():
        write_json(folder / name, content)
    for name in inventory.side_files:
        target = folder / name
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(Path(inventory.folder) / name, target)


def write_weights(new: NewCheckpoint, folder: Path) -> None:
    """Write the weights, a shard in memory at a time, and the index where there are several."""
    inventory = new.inventory
    values = NewValues(new, partial(read_tensor, inventory))
    shards: dict[str, list[NewTensor]] = {}
    for tensor in new.tensors:
        shards.setdefault(file_name(inventory, tensor), []).append(tensor)
    weight_map: dict[str, str] = {}
    total_size = 0
    for file, tensors in shards.items():
        state = {tensor.name: values.tensor(tensor) for tensor in tensors}
        total_size += sum(value.nbytes for value in state.values())
        weight_map |= dict.fromkeys(state, file)
        if file.endswith(".pt"):
            torch.save(state, folder / file)
        else:
            metadata = {"format": "pt", **inventory.metadata.get(file, {})}
            save_file(state, folder / file, metadata)
    if len(shards) > 1 or inventory.index:
        index = {"metadata": {"total_size": total_size}, "weight_map": weight_map}
        write_json(folder / INDEX, index)


def file_name(inventory: Inventory, tensor: NewTensor) -> str:
    """The output's file for a tensor: sharded as the source is, all in one folder."""
    source = Path(inventory.tensors[tensor.parts[0]].file)
    if source.suffix == ".safetensors" or inventory.layout == "slicegpt":
        return source.name
    if "-of-" in source.name:
        return source.with_suffix(".safetensors").name.removeprefix("pytorch_")
    return "model.safetensors"
