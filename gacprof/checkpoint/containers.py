"""How bytes are stored: finding a folder's weights, their container, joining shards.

An index of shards is untrusted: its file names may not leave the folder, every shard it
names must be there, and every tensor it promises must be in the shard it names.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath, PureWindowsPath

from gacprof.checkpoint.folder import Folder, read_json
from gacprof.checkpoint.gguf_headers import read_gguf
from gacprof.checkpoint.inventory import Contents
from gacprof.checkpoint.safetensors import read_safetensors
from gacprof.checkpoint.torchfile import LEGACY_MAGIC, read_torch_legacy, read_torch_zip
from gacprof.core.errors import CheckpointError

LEFT_OUT = ": left out"
"""How a note ends that tells of something in the folder which is no part of the checkpoint."""

_CONVENTIONAL = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
"""The names transformers looks for, in its order."""

WEIGHTS = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".gguf")
_NOT_MODELS = ("training_args.bin", "optimizer.bin", "optimizer.pt", "scheduler.pt", "rng_state")


def find_container(folder: Folder) -> str:
    """The name of the file (or index) that holds the weights of a folder."""
    names = folder.names()
    for name in _CONVENTIONAL:
        if name in names:
            return name
    indexes = [n for n in names if n.endswith(".index.json")]
    weights = [n for n in names if n.endswith(WEIGHTS) and not n.startswith(_NOT_MODELS)]
    if len(indexes) == 1:
        return indexes[0]
    if len(weights) == 1:
        return weights[0]
    if not weights:
        raise CheckpointError(
            f"{folder.location}: no weights here (no *.safetensors, *.bin, *.pt, *.pth, *.gguf or "
            "index)"
        )
    raise CheckpointError(
        f"{folder.location}: several weight files and no index ({', '.join(weights[:5])}); "
        "name one of them"
    )


MAX_NAME = 1000
MAX_PARTS = 64
"""Of a tensor's name. Public models have names of up to 120 characters and 15 parts."""


def read_container(folder: Folder, name: str) -> Contents:
    """Read the headers of the weights file or index ``name``; no tensor data is read."""
    read = _read_sharded if name.endswith(".index.json") else _read_file
    contents = read(folder, name)
    for tensor in contents.tensors:
        if len(tensor) > MAX_NAME or tensor.count(".") > MAX_PARTS:
            raise CheckpointError(
                f"{folder.location}/{name}: the tensor name {tensor[:120]!r} goes on for "
                f"{len(tensor)} characters: not a model"
            )
    return contents


def _read_file(folder: Folder, name: str) -> Contents:
    """One file, by what it begins with: LLM-Pruner pickles a model into pytorch_model.bin."""
    where = f"{folder.location}/{name}"
    head = folder.read(name, 0, min(folder.size(name), 16))
    if head.startswith(b"version https://"[: len(head)]) and head:
        raise CheckpointError(f"{where}: a Git LFS pointer, not the file; run 'git lfs pull'")
    if head.startswith(b"PK\x03\x04"):
        return read_torch_zip(folder, name)
    if head.startswith(LEGACY_MAGIC[:13]):
        return read_torch_legacy(folder, name)
    if head.startswith(b"GGUF"):  # before safetensors: byte 8 counts the tensors, and 123 is "{"
        return read_gguf(folder, name)
    if name.endswith(".safetensors") or head[8:9] == b"{":
        return read_safetensors(folder, name)
    if not head:
        raise CheckpointError(f"{where}: is empty")
    raise CheckpointError(f"{where}: neither safetensors nor a torch.save file; or truncated")


def _read_sharded(folder: Folder, index: str) -> Contents:
    """The tensors of all shards that ``index`` names."""
    where = f"{folder.location}/{index}"
    weight_map = _weight_map(folder, index, where)
    shards = sorted(set(weight_map.values()))
    present = set(folder.names())
    for shard in shards:
        _check_name(shard, where)
        if "/" not in shard and shard not in present:
            raise CheckpointError(f"{where}: shard {shard!r} is missing; fetch it")
    folder.prepare(shards)
    read = {shard: _read_file(folder, shard) for shard in shards}
    for name, shard in weight_map.items():
        if name not in read[shard].tensors:
            raise CheckpointError(
                f"{where}: tensor {name[:120]!r} is not in {shard!r}; index and shards disagree"
            )
    tensors = {name: read[shard].tensors[name] for name, shard in weight_map.items()}
    held = [name for contents in read.values() for name in contents.tensors]
    left_out = tuple(sorted(set(held) - tensors.keys()))
    notes = [note for contents in read.values() for note in contents.notes]
    if left_out:
        more = f" and {len(left_out) - 1} more" if len(left_out) > 1 else ""
        held_by = f"the shards hold '{left_out[0]}'{more}, which {index} does not name"
        notes.append(held_by + LEFT_OUT)
    if len(held) > len(set(held)):
        notes.append(f"a tensor is in several shards: the one that {index} names counts")
    container = read[shards[0]].container
    return Contents(tensors, container=container, notes=tuple(notes), left_out=left_out)


def _weight_map(folder: Folder, index: str, where: str) -> Mapping[str, str]:
    """Tensor name to file name."""
    weight_map = read_json(folder, index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{where}: has no weight_map")
    for name, shard in weight_map.items():
        if not isinstance(shard, str):
            raise CheckpointError(f"{where}: the file of tensor {name[:120]!r} is not a name")
    return weight_map


def _check_name(shard: str, where: str) -> None:
    """A shard's name stays inside the folder; links are looked at when it is read."""
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
