"""What an output folder holds: weights, configs, the index, the tokenizer, and where it came from.

safetensors stay as they are, shard by shard. Pickled checkpoints become safetensors with the
same tensor names, because a whole-model pickle could only be rebuilt by importing what it
names; SliceGPT's own loader wants its ``.pt``, which is a plain state dict and is written as
one.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gacprof
from gacprof.checkpoint import Inventory
from gacprof.checkpoint.containers import LEFT_OUT, WEIGHTS
from gacprof.checkpoint.folder import LocalFolder, json_object
from gacprof.checkpoint.inventory import NewSizes
from gacprof.checkpoint.layouts.widths import config_disagrees
from gacprof.core.errors import CheckpointError
from gacprof.core.files import copy, write_json, write_text
from gacprof.core.formatting import visible
from gacprof.resizing.changes import NewTensor
from gacprof.resizing.request import RealignResult
from gacprof.resizing.writers import INDEX, WeightsFile, index_of

PROVENANCE = "gacprof.json"
REALIGNED = "gacprof.realigned/1"
"""Schema of the record of what was realigned."""


def write_others(
    folder: Path,
    inventory: Inventory,
    configs: Mapping[str, Mapping[str, Any]],
    result: RealignResult,
    origin: Mapping[str, Any],
) -> None:
    """All but the weights: ``configs`` and the index by name, what else belongs to the checkpoint,
    and the record of what was realigned."""
    for name, content in configs.items():
        # they may hold Infinity (Mamba-2's time_step_limit), which transformers reads
        write_text(folder / name, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    for name in inventory.side_files:
        if name not in configs and name not in result.files:
            copy(Path(inventory.folder) / name, folder / name)
    write_provenance(folder, inventory, REALIGNED, **_record(inventory, result, origin))


def weights_files(
    inventory: Inventory, tensors: Mapping[str, NewTensor], *, named_anew: bool = False
) -> tuple[WeightsFile, ...]:
    """The output's weight files, sharded as the source is. Those of safetensors keep their names
    unless they are ``named_anew``, as transformers looks for them.

    Raises :class:`CheckpointError` for a name that another file of the output needs.
    """
    by_source: dict[str, list[NewTensor]] = {}
    for tensor in tensors.values():
        by_source.setdefault(tensor.sources[0].file, []).append(tensor)
    found = []
    for i, (source, stored) in enumerate(sorted(by_source.items()), 1):
        if inventory.container == "safetensors" and not named_anew:
            name, metadata = source, inventory.metadata[source]
        elif inventory.layout == "slicegpt" and not named_anew:
            found.append(WeightsFile(source, "torch", tuple(stored), {}))
            continue
        else:
            shard = f"-{i:05d}-of-{len(by_source):05d}" if len(by_source) > 1 else ""
            name, metadata = f"model{shard}.safetensors", {"format": "pt"}
        found.append(WeightsFile(name, "safetensors", tuple(stored), metadata))
    for file in found:
        if not file.name.endswith(WEIGHTS) or file.name.startswith(".") or "/." in file.name:
            raise CheckpointError(
                f"{inventory.path}: {file.name!r} is no name for weights here: other files of the "
                f"output have such names; rename it to end with {WEIGHTS[0]}, in the index too"
            )
    return tuple(found)


def index(
    inventory: Inventory, files: Sequence[WeightsFile], parameters: int
) -> dict[str, dict[str, Any]]:
    """The output's index by its file name; nothing where it needs none.

    Unknown keys of the source's index are kept, its sizes are brought up to date.
    """
    name, old = inventory.index or (INDEX, {})
    if files[0].kind != "safetensors" or (inventory.index is None and len(files) == 1):
        return {}
    if inventory.container != "safetensors":
        name = INDEX
    new = index_of(files)
    metadata = dict(old.get("metadata") or {}) | new["metadata"]
    if "total_parameters" in metadata:
        metadata["total_parameters"] = parameters
    return {name: {**old, **new, "metadata": metadata}}


def write_provenance(folder: Path, inventory: Inventory, schema: str, **more: Any) -> None:
    """Where an output came from and what was done, beside the weights."""
    source = {"path": visible(inventory.path), "fingerprint": inventory.fingerprint}
    record = {"schema": schema, "gacprof": gacprof.__version__, "source": source}
    write_json(folder / PROVENANCE, record | more)


def _record(
    inventory: Inventory, result: RealignResult, origin: Mapping[str, Any]
) -> dict[str, Any]:
    """What was realigned, and the source's own record."""
    record: dict[str, Any] = {
        "origin": dict(origin),
        "layout": result.layout,
        "exact": result.exact,
        "parameters": {"before": result.parameters_before, "after": result.parameters_after},
        "resized": [asdict(change) for change in result.resized],
        "fused": list(result.fused),
        "notes": list(result.notes),
    }
    source = LocalFolder(Path(inventory.folder))
    if PROVENANCE in source.names():
        record["earlier"] = None
        with contextlib.suppress(CheckpointError):
            record["earlier"] = json_object(source, PROVENANCE)
    return record


def notes_on(
    inventory: Inventory, sizes: NewSizes, mirrored: Mapping[str, Mapping[str, Any]]
) -> tuple[str, ...]:
    """What the user has to know or to add by hand, and what the config cannot say of the sizes."""
    notes = [note for note in inventory.notes if note.endswith(LEFT_OUT)]
    has_tokenizer = any(name.startswith("tokenizer") for name in inventory.side_files)
    if inventory.attributes and inventory.container != "memory" and not has_tokenizer:
        notes.append(
            "a tokenizer inside a pickle is not unpickled: copy the original model's files"
        )
    if "config.json" in mirrored:
        notes += config_disagrees(mirrored["config.json"], inventory.dims, sizes)
    return tuple(notes)
