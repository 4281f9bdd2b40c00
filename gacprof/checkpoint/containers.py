"""Find and read a folder's weights: the file or index that holds them, and an index's shards."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gacprof.checkpoint.inventory import Contents, TensorInfo
from gacprof.checkpoint.pickled import read_torch_file
from gacprof.core.dtypes import BY_CODE
from gacprof.core.errors import INSTALL, CheckpointError
from gacprof.core.files import open_regular, read_object
from gacprof.core.points import MAX_DIM

_CONVENTIONAL = (  # what transformers looks for, in its order
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
_ENDINGS = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".index.json")
_NOT_MODELS = ("training_args.bin", "optimizer.", "scheduler.pt", "rng_state")
_INDEX = ".index.json"
MAX_NAME_LENGTH = 4096  # published: 150; the time to match patterns grows with the square
MAX_VIEWS = 4  # how often tensors may show a file's bytes: a fused weight and its parts are 2


def weights_in(folder: Path) -> list[str]:
    """Return the names of the file, the index of shards, or the files that may hold the weights."""
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    weights = [n for n in names if n.endswith(_ENDINGS) and not n.startswith(_NOT_MODELS)]
    conventional = [name for name in _CONVENTIONAL if name in names]
    return conventional[:1] or [n for n in weights if n.endswith(_INDEX)] or weights


def find_weights(folder: Path) -> Path:
    """Return the file, or the index of shards, that holds a folder's weights."""
    candidates = weights_in(folder)
    if not candidates:
        raise CheckpointError(
            f"{folder}: no weights (no *.safetensors, *.bin, *.pt, *.pth or index): for a config "
            "alone use gacprof lint"
        )
    if len(candidates) > 1:
        raise CheckpointError(f"{folder}: several weights ({', '.join(candidates)}): name one")
    return folder / candidates[0]


def check_link(path: Path) -> None:
    """Raise :class:`CheckpointError` for a link out of its folder, by which a foreign checkpoint
    could have us copy any file here. Links of the hub's cache lead into ``models--X/blobs``."""
    folder, target = path.parent.resolve(), path.resolve()
    caches = [root / "blobs" for root in folder.parents if root.name.startswith("models--")]
    if not any(map(target.is_relative_to, (folder, *caches))):
        raise CheckpointError(
            f"{path} is a link out of its folder, to {target}: put the file itself there"
        )


def read_weights(path: Path) -> Contents:
    """Return the tensors of a weights file or an index. Raises :class:`CheckpointError`."""
    check_link(path)
    if path.name.endswith(_INDEX):
        return _read_shards(path)
    with open_regular(path) as file:
        head = file.read(16)
    # By content: files of either format are called .bin and .pt
    if head.startswith(b"PK\x03\x04"):
        contents = read_torch_file(path)
    elif head[8:9] == b"{":
        contents = read_safetensors(path)
    else:
        raise CheckpointError(
            f"{path} is neither safetensors nor a zipped torch.save file: name a model's folder or "
            "its weights, or fetch them again (a pointer: 'git lfs pull'; older than torch 1.6: "
            "save again)"
        )
    _check_bounds(path, contents)
    return contents


def _check_bounds(path: Path, contents: Contents) -> None:
    """Raise :class:`CheckpointError` where tensors are out of proportion to their file."""
    # A tied weight counts once, other views of the same bytes each time
    views = {info.stored_at: info.nbytes for info in contents.tensors.values()}
    size = path.stat().st_size
    if sum(views.values()) > MAX_VIEWS * size:
        raise CheckpointError(
            f"{path} of {size:,} bytes has tensors of {sum(views.values()):,}: views that repeat "
            "their storage are not read: save contiguous tensors"
        )
    for info in contents.tensors.values():
        if len(info.name) > MAX_NAME_LENGTH or max(info.shape, default=0) > MAX_DIM:
            raise CheckpointError(
                f"{path}: tensor {info.name[:100]!r} has a name of {len(info.name):,} characters, "
                f"and its largest size is {max(info.shape, default=0)}: no model has such a one"
            )


def _read_shards(index: Path) -> Contents:
    """Return the tensors of all shards that an index names; they stand beside it."""
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index} has no weight_map, a shard for each tensor: fetch it again")
    shard_of = dict(zip(weight_map, map(str, weight_map.values()), strict=True))
    missing = sorted(set(shard_of.values()) - {path.name for path in index.parent.iterdir()})
    if missing:
        raise CheckpointError(
            f"{index}: shards are missing in its folder: {missing[:3]}: fetch them"
        )
    parts = {shard: read_weights(index.parent / shard) for shard in sorted({*shard_of.values()})}
    try:
        tensors = {name: parts[shard].tensors[name] for name, shard in shard_of.items()}
    except KeyError as error:
        raise CheckpointError(f"{index} names {error}, which its shard lacks: fetch it") from None
    stored: set[str] = set()
    metadata: dict[str, Mapping[str, str]] = {}
    for part in parts.values():
        stored.update(part.tensors)
        metadata |= part.metadata
    left_out = tuple(sorted(stored - tensors.keys()))
    contents = Contents(tensors, container=part.container, metadata=metadata, has_index=True)
    if not left_out:
        return contents
    warning = f"{len(left_out)} tensors, {left_out[0]} the first, are not in {index.name}"
    return replace(contents, warnings=(warning,), left_out=left_out)


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file of a checkpoint. Raises :class:`CheckpointError`."""
    check_link(path)
    try:
        return read_object(path)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}: mend it") from None


def read_hub(repository: str) -> Contents:
    """Return the tensors and the config of ``org/name`` or ``org/name@revision``."""
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


def read_safetensors(path: Path) -> Contents:
    """Return the tensors of one file, whose header the format's own library has checked."""
    from safetensors import SafetensorError, safe_open

    try:
        # So every byte belongs to one tensor, and none is read twice
        with safe_open(path, "numpy"), path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            entries = json.loads(file.read(length))
    except (OSError, SafetensorError) as error:
        reason = " ".join(str(error).partition(", expected")[0].split())[:200]
        raise CheckpointError(
            f"{path} is no whole safetensors file of known types: {reason}: fetch or save it again"
        ) from None
    metadata = entries.pop("__metadata__", None) or {}
    unread = {entry["dtype"] for entry in entries.values()} - BY_CODE.keys()
    if unread:
        raise CheckpointError(f"{path} stores {min(unread)}, which gacprof does not read")
    tensors = {}
    for name, entry in entries.items():
        dtype, (start, end) = BY_CODE[entry["dtype"]].name, entry["data_offsets"]
        place = (path.name, 8 + length + start, end - start)
        tensors[name] = TensorInfo(name, tuple(entry["shape"]), dtype, *place)
    return Contents(tensors, container="safetensors", metadata={path.name: metadata})
