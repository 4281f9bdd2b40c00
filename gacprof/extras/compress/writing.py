"""The compressed model's folder: weights streamed into safetensors, configs, plan and model card.

Nothing appears under the output's name before all of it is on the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch

from gacprof.checkpoint.inventory import Contents, Inventory, TensorInfo
from gacprof.checkpoint.scanning import TensorReader, describe
from gacprof.core.dtypes import element_type
from gacprof.core.errors import CompressionError
from gacprof.core.files import copy, write_json, write_text
from gacprof.resizing.workspace import require_space, workspace
from gacprof.resizing.writers import INDEX, bytes_of, index_of, write_safetensors

SHARD_BYTES = 4 << 30
"""Larger models are written in several files."""

CARD, PLAN = "README.md", "plan.json"


@dataclass(frozen=True)
class OutputTensor:
    """A tensor of the output; ``make`` gives its values, None where the source has them."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    make: Callable[[], torch.Tensor] | None = None

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * element_type(self.dtype).itemsize


def unique(reader: TensorReader) -> list[TensorInfo]:
    """The tensors of the source, one that is stored under two names once."""
    seen: dict[object, TensorInfo] = {}
    for info in reader.inventory.tensors.values():
        seen.setdefault(info.stored_at, info)
    return list(seen.values())


def inventory_of_output(
    path: str, tensors: Iterable[OutputTensor], config: Mapping[str, Any]
) -> Inventory:
    """What a scan of the output will say, before it is written."""
    infos = {t.name: TensorInfo(t.name, t.shape, t.dtype, "", None, t.nbytes) for t in tensors}
    return describe(path, Contents(infos, dict(config)))


def write_folder(
    out: Path,
    key: str,
    reader: TensorReader,
    tensors: Sequence[OutputTensor],
    files: Mapping[str, Mapping[str, Any]],
    card: str,
) -> None:
    """Write everything; ``files`` are JSON by name, config.json among them.

    Raises :class:`CompressionError` where a value does not fit its type, or
    :class:`CheckpointError` where the disk is full.
    """
    with workspace(out, key) as folder:
        require_space(folder, sum(tensor.nbytes for tensor in tensors))
        shards = _shards(tensors)
        name = "model.safetensors" if len(shards) == 1 else "model-{:05d}-of-{:05d}.safetensors"
        named = [_Shard(name.format(i, len(shards)), held) for i, held in enumerate(shards, 1)]
        for shard in named:
            write_safetensors(
                folder / shard.name, shard.tensors, {"format": "pt"}, partial(_append, reader)
            )
        if len(shards) > 1:
            write_json(folder / INDEX, index_of(named))
        for name, content in files.items():
            write_json(folder / name, content)
        write_text(folder / CARD, card)
        for name in reader.inventory.side_files:
            if name not in {*files, *(shard.name for shard in named)} and not name.endswith(".py"):
                copy(Path(reader.inventory.folder) / name, folder / name)


class _Shard(NamedTuple):
    name: str
    tensors: list[OutputTensor]


def _shards(tensors: Sequence[OutputTensor]) -> list[list[OutputTensor]]:
    shards: list[list[OutputTensor]] = [[]]
    held = 0
    for tensor in tensors:
        if shards[-1] and held + tensor.nbytes > SHARD_BYTES:
            shards.append([])
            held = 0
        shards[-1].append(tensor)
        held += tensor.nbytes
    return shards


def _append(reader: TensorReader, file: BinaryIO, tensor: OutputTensor) -> None:
    file.write(reader.raw(tensor.name) if tensor.make is None else _bytes_of(tensor))


def _bytes_of(tensor: OutputTensor) -> memoryview:
    assert tensor.make is not None
    value = tensor.make()
    if tuple(value.shape) != tensor.shape:
        raise ValueError(f"{tensor.name} has shape {tuple(value.shape)}, not {tensor.shape}")
    narrow = value.to(getattr(torch, tensor.dtype))
    if not torch.isfinite(narrow).all():
        raise CompressionError(f"'{tensor.name}' does not fit {tensor.dtype}: it overflows")
    return bytes_of(narrow)
