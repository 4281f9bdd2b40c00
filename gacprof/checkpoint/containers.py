"""Weights of a folder: the file or index that holds them, and the shards that an index names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gacprof.checkpoint.inventory import Contents
from gacprof.checkpoint.pickled import read_torch_file
from gacprof.checkpoint.safetensors import read_safetensors
from gacprof.core.errors import CheckpointError

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
    indexes = [name for name in weights if name.endswith(_INDEX)]
    for candidates in (conventional[:1], indexes, weights):
        if len(candidates) == 1:
            return folder / candidates[0]
    if not weights:
        raise CheckpointError(
            f"{folder}: no weights (no *.safetensors, *.bin, *.pt, *.pth or index): for a config "
            "alone use gacprof lint"
        )
    raise CheckpointError(f"{folder}: several weight files ({', '.join(weights[:5])}): name one")


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
    places: Any = settings.pop("weight_map", None)
    shards: list[str] = []
    if isinstance(places, dict):
        shards = sorted({str(shard) for shard in places.values()})
    for shard in shards:
        if Path(shard).name != shard or not (index.parent / shard).is_file():
            raise CheckpointError(f"{index}: shard '{shard}' is not in its folder: fetch it")
    parts = {shard: read_weights(index.parent / shard) for shard in shards}
    lost = [n for n, shard in places.items() if n not in parts[shard].tensors] if parts else [""]
    if lost:
        raise CheckpointError(f"{index}: tensor '{lost[0]}' is in no shard that it names: fetch it")
    unnamed = {name for part in parts.values() for name in part.tensors} - places.keys()
    warnings = [warning for part in parts.values() for warning in part.warnings]
    if unnamed:
        warnings.append(
            f"{len(unnamed)} tensors, '{min(unnamed)}' the first, are not in {index.name}"
        )
    return Contents(
        {name: parts[shard].tensors[name] for name, shard in places.items()},
        container=parts[shards[0]].container,
        metadata={shard: text for part in parts.values() for shard, text in part.metadata.items()},
        index=(index.name, settings),
        warnings=tuple(warnings),
        left_out=tuple(sorted(unnamed)),
    )


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file. Raises :class:`CheckpointError`."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, RecursionError, ValueError) as error:
        raise CheckpointError(f"{path} is no JSON file: {error}: mend it") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds no JSON object but a {type(value).__name__}: mend it")
    return value
