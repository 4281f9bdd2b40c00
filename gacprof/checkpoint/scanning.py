"""From a path to an inventory: find the container, read headers, recognise the layout."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from gacprof.checkpoint.containers import Stored, find_container, read_container
from gacprof.checkpoint.folder import Folder, LocalFolder, read_json
from gacprof.checkpoint.hub import HubFolder, is_hub_id
from gacprof.checkpoint.inventory import Inventory, TensorInfo
from gacprof.checkpoint.layouts import Contents, recognise
from gacprof.core.errors import CheckpointError

_SIDE_FILES = (
    "config.json",
    "generation_config.json",
    "quantize_config.json",
    "quant_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.tiktoken",
    "spiece.model",
    "chat_template*",
    "*processor_config.json",
    "configuration_*.py",
    "modeling_*.py",
    "tokenization_*.py",
    "LICENSE*",
    "NOTICE*",
)
"""What belongs to a checkpoint besides its weights."""


def scan(path: str | Path, *, factors: tuple[str, str] | None = None) -> Inventory:
    """The inventory of the checkpoint at ``path``, from headers only.

    ``path`` is a folder, a weights file in it, or a model on the hub (``org/name`` or
    ``org/name@revision``) where no such folder exists. ``factors`` is a pair of tensor name
    patterns (outer ``[out, r]``, inner ``[r, in]``) with ``{module}`` in each, for a factored
    layout that is not recognised by itself. Raises :class:`CheckpointError`.
    """
    folder, name = _locate(Path(path))
    return inventory_of(str(path), folder, name, factors)


def _locate(path: Path) -> tuple[Folder, str]:
    try:
        is_dir, is_file, exists = path.is_dir(), path.is_file(), path.exists()
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{str(path)[:200]!r}: cannot be read: {error}") from None
    if is_dir:
        folder = LocalFolder(path)
        return folder, find_container(folder)
    if is_file:
        return LocalFolder(path.parent), path.name
    if exists:
        raise CheckpointError(f"{path}: is neither a folder nor a file")
    if is_hub_id(str(path)):
        hub = HubFolder(str(path))
        return hub, find_container(hub)
    raise CheckpointError(f"{str(path)[:200]!r}: there is no such folder or file")


def inventory_of(
    path: str, folder: Folder, name: str, factors: tuple[str, str] | None = None
) -> Inventory:
    """The inventory of the weights ``name`` in ``folder``."""
    stored = read_container(folder, name)
    if not stored.tensors:
        raise CheckpointError(f"{folder.location}/{name}: holds no tensors")
    names = folder.names()
    config = _config(folder, names, stored)
    side = _side(folder, names, name)
    contents = Contents(stored.tensors, config, side, stored.attributes, factors)
    layout = recognise(contents)
    findings = layout.describe(contents)
    return Inventory(
        path=path,
        layout=layout.name,
        container=stored.container,
        config=config,
        tensors=stored.tensors,
        modules=findings.modules,
        dims=findings.dims,
        attentions=findings.attentions,
        fingerprint=fingerprint(stored.tensors),
        side_files=tuple(n for n in names if belongs(n) or n in side),
        notes=(*stored.notes, *findings.notes),
        side=side,
        attributes=stored.attributes,
        left_out=stored.left_out,
    )


def _config(folder: Folder, names: tuple[str, ...], stored: Stored) -> Mapping[str, Any]:
    if "config.json" in names:
        return read_json(folder, "config.json", constants=True)
    return stored.config


def _side(folder: Folder, names: tuple[str, ...], name: str) -> dict[str, Mapping[str, Any]]:
    """The JSON file with the weights' own stem (SliceGPT writes one)."""
    own = Path(name).stem + ".json"
    return {own: read_json(folder, own)} if own in names and own != "config.json" else {}


def belongs(name: str) -> bool:
    """Whether a file of this name would be taken for a part of a checkpoint beside its weights."""
    return any(fnmatch(name, pattern) for pattern in _SIDE_FILES)


def fingerprint(tensors: Mapping[str, TensorInfo]) -> str:
    """A digest over every tensor's name, dtype and shape, whatever the container."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        info = tensors[name]
        digest.update(f"{name}\0{info.dtype}\0{info.shape}\n".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
