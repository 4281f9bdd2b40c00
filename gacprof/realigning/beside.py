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
from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.load_config import module_facts
from gacprof.files import sync, write_json
from gacprof.realigning.destination import WeightsFile, index_of
from gacprof.realigning.edits import Sizes
from gacprof.realigning.result import RealignResult

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


def notes_on(inventory: Inventory) -> tuple[str, ...]:
    """What the user has to add by hand."""
    pickled = bool(inventory.attributes)
    if pickled and not any(name.startswith("tokenizer") for name in inventory.side_files):
        return ("a tokenizer inside a pickle is not unpickled: copy the original model's files",)
    return ()
