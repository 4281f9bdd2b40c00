"""Which files the output has: their names, what they hold, and how they are written.

safetensors stay as they are, shard by shard. Pickled checkpoints become safetensors with the
same tensor names, because a whole-model pickle could only be rebuilt by importing what it
names; SliceGPT's own loader wants its ``.pt``, which is a plain state dict and is written as
one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Literal

from gacprof.checkpoint.containers import find_container
from gacprof.checkpoint.folder import LocalFolder, read_json
from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.safetensors import MAX_HEADER_BYTES
from gacprof.resizing.fusion import Output
from gacprof.resizing.safetensors_file import nbytes

Kind = Literal["safetensors", "torch"]


@dataclass(frozen=True)
class WeightsFile:
    """One file of the output and the tensors in it. ``metadata`` is for safetensors."""

    name: str
    kind: Kind
    edits: tuple[Output, ...]
    metadata: Mapping[str, str]

    @property
    def nbytes(self) -> int:
        return sum(nbytes(edit) for edit in self.edits)


def weights_files(inventory: Inventory, edits: Mapping[str, Output]) -> tuple[WeightsFile, ...]:
    """The output's weight files, sharded as the source is."""
    by_source: dict[str, list[Output]] = {}
    for edit in edits.values():
        by_source.setdefault(edit.sources[0].file, []).append(edit)
    sources = sorted(by_source)
    if inventory.container == "safetensors":
        names = {source: source for source in sources}
    elif inventory.layout == "slicegpt":
        return tuple(WeightsFile(s, "torch", tuple(by_source[s]), {}) for s in sources)
    elif len(sources) == 1:
        names = {sources[0]: "model.safetensors"}
    else:
        names = {
            source: f"model-{i:05d}-of-{len(sources):05d}.safetensors"
            for i, source in enumerate(sources, 1)
        }
    return tuple(
        WeightsFile(
            names[source], "safetensors", tuple(by_source[source]), _metadata(inventory, source)
        )
        for source in sources
    )


def index_of(inventory: Inventory, files: Sequence[WeightsFile]) -> tuple[str, Any] | None:
    """The name and content of the output's index, or None where it needs none.

    Unknown keys of the source's index are kept, its sizes are brought up to date.
    """
    name = _index_name(inventory)
    if files[0].kind != "safetensors" or (name is None and len(files) == 1):
        return None
    index = read_json(LocalFolder(Path(inventory.folder)), name) if name else {}
    metadata = dict(index.get("metadata") or {})
    metadata["total_size"] = sum(file.nbytes for file in files)
    if "total_parameters" in metadata:
        metadata["total_parameters"] = parameters_after(
            inventory, (edit for file in files for edit in file.edits)
        )
    weight_map = {edit.name: file.name for file in files for edit in file.edits}
    kept = name if name and inventory.container == "safetensors" else None
    return kept or "model.safetensors.index.json", {
        **index,
        "metadata": metadata,
        "weight_map": dict(sorted(weight_map.items())),
    }


def parameters_after(inventory: Inventory, edits: Iterable[Output]) -> int:
    """The checkpoint's parameters after its changes, counted as the inventory counts them: a
    tensor that is stored once under two names counts once."""
    grown: dict[object, int] = {}
    for edit in edits:
        key = tuple((i.file, i.offset, i.shape, i.stride) for i in edit.sources)
        grown[key] = prod(edit.shape) - sum(info.numel for info in edit.sources)
    return inventory.parameters + sum(grown.values())


def _index_name(inventory: Inventory) -> str | None:
    path = Path(inventory.path)
    name = path.name if path.is_file() else find_container(LocalFolder(path))
    return name if name.endswith(".index.json") else None


def _metadata(inventory: Inventory, file: str) -> dict[str, str]:
    """A safetensors file's own metadata; ``format: pt`` for what was pickled."""
    if inventory.container != "safetensors":
        return {"format": "pt"}
    with (Path(inventory.folder) / file).open("rb") as source:
        length = int.from_bytes(source.read(8), "little")
        found = json.loads(source.read(min(length, MAX_HEADER_BYTES))).get("__metadata__")
    return {str(k): str(v) for k, v in (found or {}).items()}
