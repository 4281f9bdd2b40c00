"""Weights of a folder: the file or index that holds them, and the shards that an index names."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from gacprof.checkpoint.inventory import Contents, TensorInfo
from gacprof.checkpoint.pickled import read_torch_file
from gacprof.core.dtypes import BY_CODE
from gacprof.core.errors import INSTALL, CheckpointError

_CONVENTIONAL = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
"""Names that transformers looks for, in its order."""

_ENDINGS = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".index.json")
_NOT_MODELS = ("training_args.bin", "optimizer.", "scheduler.pt", "rng_state")
_INDEX = ".index.json"


def find_weights(folder: Path) -> Path:
    """Return the file, or the index of shards, that holds a folder's weights."""
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    weights = [n for n in names if n.endswith(_ENDINGS) and not n.startswith(_NOT_MODELS)]
    conventional = [name for name in _CONVENTIONAL if name in names]
    candidates = conventional[:1] or [n for n in weights if n.endswith(_INDEX)] or weights
    if not candidates:
        raise CheckpointError(
            f"{folder}: no weights (no *.safetensors, *.bin, *.pt, *.pth or index): for a config "
            "alone use gacprof lint"
        )
    if len(candidates) > 1:
        raise CheckpointError(f"{folder}: several weights ({', '.join(candidates)}): name one")
    return folder / candidates[0]


def read_weights(path: Path) -> Contents:
    """Return the tensors of a weights file or an index. Raises :class:`CheckpointError`."""
    if path.name.endswith(_INDEX):
        return _read_shards(path)
    with path.open("rb") as file:
        head = file.read(16)
    if head.startswith(b"PK\x03\x04"):
        return read_torch_file(path)
    if head[8:9] == b"{":
        return read_safetensors(path)
    raise CheckpointError(
        f"{path} is neither safetensors nor a zipped torch.save file: fetch it again ('git lfs "
        "pull' where it is a pointer), or save it again with torch 1.6 or later"
    )


def _read_shards(index: Path) -> Contents:
    """The tensors of all shards that an index names; they stand beside it."""
    settings = read_json_object(index)
    shard_of = dict(settings.pop("weight_map", None) or {})
    present = {path.name for path in index.parent.iterdir() if path.is_file()}
    missing = sorted(set(map(str, shard_of.values())) - present)
    if missing or not shard_of:
        raise CheckpointError(
            f"{index}: shards are missing in its folder: {missing[:3]}: fetch them"
        )
    parts = {shard: read_weights(index.parent / shard) for shard in sorted({*shard_of.values()})}
    stored = {name: info for part in parts.values() for name, info in part.tensors.items()}
    try:
        tensors = {name: parts[shard].tensors[name] for name, shard in shard_of.items()}
    except KeyError as error:
        raise CheckpointError(f"{index} names {error}, which its shard lacks: fetch it") from None
    left_out = tuple(sorted(stored.keys() - tensors.keys()))
    warnings = [warning for part in parts.values() for warning in part.warnings]
    if left_out:
        warnings.append(
            f"{len(left_out)} tensors, {left_out[0]} the first, are not in {index.name}"
        )
    return Contents(
        tensors,
        container=next(part.container for part in parts.values()),
        metadata={shard: text for part in parts.values() for shard, text in part.metadata.items()},
        index=(index.name, settings),
        warnings=tuple(warnings),
        left_out=left_out,
    )


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file. Raises :class:`CheckpointError`."""
    try:
        value = json.loads(path.read_bytes())
        if not isinstance(value, dict):
            raise TypeError(f"it holds a {type(value).__name__}")
    except (OSError, RecursionError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} holds no JSON object: {error}: mend it") from None
    return value


def read_hub(repository: str) -> Contents:
    """Return the tensors and the config of ``org/name`` or ``org/name@revision``.

    Raises :class:`CheckpointError` where the hub cannot be asked or has no safetensors there.
    """
    name, _, revision = repository.partition("@")
    tensors = {}
    try:
        from huggingface_hub import get_safetensors_metadata, hf_hub_download

        metadata = get_safetensors_metadata(name, revision=revision or None)
        config = hf_hub_download(name, "config.json", revision=revision or None)
        for file, header in metadata.files_metadata.items():
            for tensor, info in header.tensors.items():
                dtype, (start, end) = BY_CODE[info.dtype].name, info.data_offsets
                shape = tuple(info.shape)
                tensors[tensor] = TensorInfo(tensor, shape, dtype, file, start, end - start)
    except ImportError:
        raise CheckpointError(
            f"{repository}: no such folder; the hub needs: {INSTALL.format('hub')}"
        ) from None
    except Exception as error:  # whatever the library and its HTTP stack raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise CheckpointError(f"{repository}: no such folder, and the hub says: {reason}") from None
    return Contents(tensors, read_json_object(Path(config)), container="safetensors")


MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""


def read_safetensors(path: Path) -> Contents:
    """Return the tensors of one file, none of their data read. Raises :class:`CheckpointError`."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > min(size, MAX_HEADER_BYTES):
                raise ValueError(f"its header has {length} bytes, the file {size}")
            entries = json.loads(file.read(length))
        metadata = entries.pop("__metadata__", {})
        tensors = {}
        for name, entry in entries.items():
            element, shape = BY_CODE[entry["dtype"]], tuple(entry["shape"])
            start, end = entry["data_offsets"]
            is_counts = all(type(number) is int and number >= 0 for number in (*shape, start))
            if not is_counts or math.prod(shape) * element.itemsize != end - start:
                raise ValueError(f"tensor {name[:100]!r} of shape {shape} has {end - start} bytes")
            if 8 + length + end > size:
                raise ValueError(f"tensor {name[:100]!r} ends beyond the file of {size} bytes")
            offset = 8 + length + start
            tensors[name] = TensorInfo(name, shape, element.name, path.name, offset, end - start)
    except (AttributeError, KeyError, OSError, RecursionError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(
            f"{path} is no whole safetensors file: {reason}: fetch it again"
        ) from None
    return Contents(tensors, container="safetensors", metadata={path.name: metadata})
