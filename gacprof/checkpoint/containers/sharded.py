"""Several files under one index: ``*.safetensors.index.json``, ``pytorch_model.bin.index.json``.

An index comes from strangers: its file names may not leave the folder, every shard it names
must be there, and every tensor it promises must be in the shard it names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from gacprof.checkpoint.containers.base import Stored
from gacprof.checkpoint.folder import Folder, LocalFolder, is_inside, read_json
from gacprof.checkpoint.inventory import TensorInfo
from gacprof.core.errors import CheckpointError

LEFT_OUT = "does not name: left out"

ReadShard = Callable[[Folder, str], Stored]


def read_sharded(folder: Folder, index: str, read_shard: ReadShard) -> Stored:
    """The tensors of all shards that ``index`` names. Raises :class:`CheckpointError`."""
    where = f"{folder.location}/{index}"
    weight_map = parse_index(read_json(folder, index), where)
    shards = sorted(set(weight_map.values()))
    present = set(folder.names())
    for shard in shards:
        _check_name(folder, shard, where)
        if "/" not in shard and shard not in present:
            raise CheckpointError(f"{where}: shard {shard!r} is missing; fetch it")
    folder.prepare(shards)
    stored = {shard: read_shard(folder, shard) for shard in shards}
    tensors = _collect(weight_map, stored, where)
    first = next(iter(stored.values()), None)
    held = [name for s in stored.values() for name in s.tensors]
    left_out = tuple(sorted(set(held) - tensors.keys()))
    notes = [note for s in stored.values() for note in s.notes]
    if left_out:
        more = f" and {len(left_out) - 1} more" if len(left_out) > 1 else ""
        notes.append(f"the shards hold '{left_out[0]}'{more}, which {index} {LEFT_OUT}")
    if len(held) > len(set(held)):
        notes.append(f"a tensor is in several shards: the one that {index} names counts")
    return Stored(
        first.container if first else "safetensors",
        tensors,
        notes=tuple(notes),
        left_out=left_out,
    )


def parse_index(index: Mapping[str, Any], where: str) -> dict[str, str]:
    """The ``weight_map`` of an index, tensor name to file name."""
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{where}: has no weight_map")
    for name, shard in weight_map.items():
        if not isinstance(shard, str):
            raise CheckpointError(f"{where}: the file of tensor {name[:120]!r} is not a name")
    return weight_map


def _check_name(folder: Folder, shard: str, where: str) -> None:
    """A shard's name stays inside the folder, links followed."""
    posix, windows = PurePosixPath(shard), PureWindowsPath(shard)
    if (
        not shard
        or "\0" in shard
        or "\\" in shard
        or posix.is_absolute()
        or windows.drive
        or ".." in posix.parts
    ):
        raise CheckpointError(f"{where}: shard {shard[:120]!r} is not a file of this folder")
    if isinstance(folder, LocalFolder) and not is_inside(Path(folder.path), shard):
        raise CheckpointError(f"{where}: shard {shard[:120]!r} leads outside this folder")


def _collect(
    weight_map: Mapping[str, str], stored: Mapping[str, Stored], where: str
) -> dict[str, TensorInfo]:
    tensors = {}
    for name, shard in weight_map.items():
        info = stored[shard].tensors.get(name)
        if info is None:
            raise CheckpointError(
                f"{where}: tensor {name[:120]!r} is not in {shard!r}; index and shards disagree"
            )
        tensors[name] = info
    return tensors
