"""How bytes are stored: a folder's weights, safetensors headers, joining shards.

The header is checked before any of it is used: length against the file, every offset against
the data, shapes against offsets, no overlap and no gap. The rules are those of the format's
description (github.com/huggingface/safetensors, "Format").

An index of shards is untrusted: its file names may not leave the folder, every shard it
names must be there, and every tensor it promises must be in the shard it names.
"""

from __future__ import annotations

import math
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from gacprof.checkpoint.folder import Folder, json_object, parse_json
from gacprof.checkpoint.gguf_headers import read_gguf
from gacprof.checkpoint.inventory import Contents, TensorInfo
from gacprof.checkpoint.pickled import are_counts
from gacprof.checkpoint.torchfile import LEGACY_MAGIC, read_torch_zip
from gacprof.core.dtypes import BY_CODE
from gacprof.core.errors import CheckpointError
from gacprof.core.points import MAX_DIM

MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""

MAX_OFFSET = 1 << 48

MAX_TENSORS = 500_000
"""The largest public models (671B, one tensor per expert and part) have about 92 000."""


def read_safetensors(folder: Folder, name: str) -> Contents:
    """The tensors of one file, from its header. Raises :class:`CheckpointError`."""
    where, size = f"{folder.location}/{name}", folder.size(name)
    if size < 8:
        raise CheckpointError(f"{where}: {size} bytes is too short for a safetensors file")
    length = int.from_bytes(folder.read(name, 0, 8), "little")
    if length > MAX_HEADER_BYTES or 8 + length > size:
        raise CheckpointError(
            f"{where}: header of {length} bytes does not fit (file {size} bytes, format limit "
            f"{MAX_HEADER_BYTES}); not a safetensors file, or truncated"
        )
    return parse_header(folder.read(name, 8, length), 8 + length, size, name, where)


def parse_header(header: bytes, start: int, size: int, file: str, where: str) -> Contents:
    """Check a header and return what it says; ``start`` is where the data begins in the file."""
    entries = parse_json(header, where)
    metadata = entries.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise CheckpointError(f"{where}: __metadata__ is not a map of strings")
    tensors = {name: _tensor(name, entry, start, file, where) for name, entry in entries.items()}
    if len(tensors) > MAX_TENSORS:
        raise CheckpointError(f"{where}: {len(tensors)} tensors are more than any model has")
    _check_tiling(tensors, start, size, where)
    return Contents(tensors, container="safetensors", metadata={file: metadata})


def _tensor(name: str, entry: Any, start: int, file: str, where: str) -> TensorInfo:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise _damaged(where, name, "entry is not dtype, shape and data_offsets")
    code, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    element = BY_CODE.get(code) if isinstance(code, str) else None
    if element is None:
        raise _damaged(where, name, f"dtype {str(code)[:40]!r} is not known")
    if not are_counts(shape, MAX_DIM):
        raise _damaged(where, name, f"shape {str(shape)[:80]} is not a list of sizes")
    if not are_counts(offsets, MAX_OFFSET) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _damaged(where, name, f"data_offsets {str(offsets)[:80]} are not a range")
    begin, end = offsets
    needed = math.prod(shape) * element.itemsize
    if needed != end - begin:
        needs = f"shape {shape} in {element.name} needs {needed} bytes"
        raise _damaged(where, name, f"{needs}, its data_offsets hold {end - begin}")
    return TensorInfo(name, tuple(shape), element.name, file, start + begin, end - begin)


def _damaged(where: str, name: str, fault: str) -> CheckpointError:
    return CheckpointError(f"{where}: tensor {name[:120]!r}: {fault}")


def _check_tiling(tensors: dict[str, TensorInfo], start: int, size: int, where: str) -> None:
    """Every byte of the data belongs to exactly one tensor."""
    at = start
    for info in sorted(tensors.values(), key=lambda t: (t.offset or 0, t.nbytes)):
        if info.offset != at:
            fault = "overlaps another" if (info.offset or 0) < at else "leaves a gap before it"
            raise CheckpointError(f"{where}: tensor {info.name[:120]!r} {fault}")
        at += info.nbytes
    if at != size:
        raise CheckpointError(
            f"{where}: the header describes {at} bytes, the file has {size}; truncated or corrupt"
        )


LEFT_OUT = ": left out"
"""How a note ends that tells of something in the folder which is no part of the checkpoint."""

_CONVENTIONAL = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
"""The names transformers looks for, in its order."""

OF_A_CONFIG = "'gacprof lint --fix' and 'gacprof diagnose --gpu' take a config alone"
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
        alone = f"; {OF_A_CONFIG}" if "config.json" in names else ""
        raise CheckpointError(
            f"{folder.location}: no weights here (no *.safetensors, *.bin, *.pt, *.pth, *.gguf or "
            f"index){alone}"
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
    if head.startswith(LEGACY_MAGIC):
        raise CheckpointError(
            f"{where}: a torch.save file from before torch 1.6; load it where you trust it and "
            "save it again"
        )
    if head.startswith(b"GGUF"):  # before safetensors: byte 8 counts the tensors, and 123 is "{"
        return read_gguf(folder, name)
    if head[8:9] != b"{" and head and name.endswith(".json"):  # not a shard under such a name
        raise CheckpointError(
            f"{where}: a config has no weights: 'gacprof lint' and 'gacprof diagnose --gpu' take it"
        )
    if name.endswith(".safetensors") or head[8:9] == b"{":
        return read_safetensors(folder, name)
    if not head:
        raise CheckpointError(f"{where}: is empty")
    raise CheckpointError(f"{where}: neither safetensors nor a torch.save file; or truncated")


def _read_sharded(folder: Folder, index: str) -> Contents:
    """The tensors of all shards that ``index`` names."""
    where = f"{folder.location}/{index}"
    said = json_object(folder, index)
    weight_map = said.pop("weight_map", None)
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{where}: has no weight_map")
    for name, shard in weight_map.items():
        if not isinstance(shard, str):
            raise CheckpointError(f"{where}: the file of tensor {name[:120]!r} is not a name")
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
    return Contents(
        tensors,
        container=read[shards[0]].container,
        metadata={shard: text for one in read.values() for shard, text in one.metadata.items()},
        index=(index, said),
        notes=tuple(notes),
        left_out=left_out,
    )


def _check_name(shard: str, where: str) -> None:
    """A shard's name stays inside the folder; links are looked at when it is read."""
    path = PurePosixPath(shard)
    is_odd = not shard or "\0" in shard or "\\" in shard
    if is_odd or path.is_absolute() or ".." in path.parts or PureWindowsPath(shard).drive:
        raise CheckpointError(f"{where}: shard {shard[:120]!r} is not a file of this folder")
