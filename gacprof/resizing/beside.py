"""What lies beside the weights: configs kept true, tokenizers copied, a record of what was done."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gacprof
from gacprof.checkpoint import mirrored_files
from gacprof.checkpoint.config import module_facts
from gacprof.checkpoint.containers import LEFT_OUT
from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.layouts.width import widths_against_config
from gacprof.core.errors import CheckpointError
from gacprof.core.files import sync, write_json
from gacprof.resizing.destination import WeightsFile, index_of
from gacprof.resizing.edits import Sizes
from gacprof.resizing.result import RealignResult

PROVENANCE = "gacprof.json"


def write_side_files(
    folder: Path, inventory: Inventory, sizes: Sizes, files: tuple[WeightsFile, ...]
) -> None:
    """Mirrored configs, the index, and everything else that belongs to the checkpoint."""
    written: dict[str, Any] = dict(mirrored_files(inventory, sizes))
    if "config.json" in written:
        # what only the pickled modules know goes into the config, now that they are gone
        written["config.json"] |= module_facts(inventory)
    index = index_of(inventory, files)
    if index is not None:
        written[index[0]] = index[1]
    for name, content in written.items():
        write_json(folder / name, content)
    for name in inventory.side_files:
        if name not in written and name not in (file.name for file in files):
            shutil.copyfile(Path(inventory.folder) / name, folder / name)
            sync(folder / name)


def write_provenance(
    folder: Path, inventory: Inventory, result: RealignResult, origin: Mapping[str, Any]
) -> None:
    """What was done, beside the weights; an earlier record of the source goes along."""
    record: dict[str, Any] = {
        "schema": "gacprof.realigned/1",
        "gacprof": gacprof.__version__,
        "source": {"path": inventory.path, "fingerprint": inventory.fingerprint},
        "origin": dict(origin),
        "layout": result.layout,
        "exact": result.exact,
        "parameters": {"before": result.parameters_before, "after": result.parameters_after},
        "resized": [asdict(change) for change in result.resized],
        "fused": list(result.fused),
        "notes": list(result.notes),
    }
    earlier = Path(inventory.folder) / PROVENANCE
    if earlier.is_file():
        try:
            record["earlier"] = json.loads(earlier.read_text(encoding="utf-8"))
        except ValueError:
            record["earlier"] = None
    write_json(folder / PROVENANCE, record)


def refuse_incomplete(inventory: Inventory) -> None:
    """Raise :class:`CheckpointError` where the index leaves out a tensor of a layer that it has.

    A tensor of a whole layer that the index does not know is left out by every loader, and here
    (a note says so); one whose neighbours are there was lost from the index.
    """
    for name in inventory.left_out:
        layer = name.rsplit(".", 2)[0] + "."
        if name.endswith("rotary_emb.inv_freq"):
            continue
        partner = next((other for other in inventory.tensors if other.startswith(layer)), None)
        if partner is not None:
            raise CheckpointError(
                f"{inventory.path}: its index leaves out '{name}', which the shards hold and which "
                f"belongs with '{partner}': mend the index or fetch the checkpoint again"
            )


def notes_on(inventory: Inventory, sizes: Sizes) -> tuple[str, ...]:
    """What the user has to know or to add by hand."""
    left = inventory.left_out
    told = [note for note in inventory.notes if note.endswith(LEFT_OUT)] if left else []
    pickled = bool(inventory.attributes)
    if pickled and not any(name.startswith("tokenizer") for name in inventory.side_files):
        told.append("a tokenizer inside a pickle is not unpickled: copy the original model's files")
    return (*told, *config_notes(inventory, sizes))


def config_notes(inventory: Inventory, sizes: Sizes) -> list[str]:
    """What the config cannot say of the new sizes; nothing where there is no config."""
    config = mirrored_files(inventory, sizes).get("config.json")
    return [] if config is None else widths_against_config(inventory, sizes, config)
