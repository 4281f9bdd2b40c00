"""Export a checkpoint: say what cannot be expressed, write, check."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gacprof.checkpoint import inventory_for, open_tensors
from gacprof.checkpoint.scanning import refuse_incomplete
from gacprof.core.errors import CheckpointError
from gacprof.core.files import Record
from gacprof.core.request import verb
from gacprof.extras.serve import folder, gguf, vllm
from gacprof.extras.serve.checking import cannot_run
from gacprof.extras.serve.request import Check, ExportRequest, Prepare
from gacprof.resizing.workspace import refuse_target

FORMATS: dict[str, Prepare] = {
    "transformers": folder.prepare,
    "vllm": vllm.prepare,
    "vllm-native": vllm.prepare_native,
    "gguf": gguf.prepare,
    "uniform": folder.prepare_uniform,
}


@dataclass(frozen=True)
class ExportResult(Record):
    """What was written, how it was checked, and how to serve it."""

    source: str
    out: str
    to: str
    files: tuple[str, ...]
    parameters: int
    bytes_written: int
    check: Check
    serve: str
    notes: tuple[str, ...] = ()


def _export(request: ExportRequest) -> ExportResult:
    """Write a checkpoint as a folder that an engine loads, and check what was written.

    Peak memory of writing is about the largest tensor; checking by an engine loads the model
    twice in float32, one after the other. Raises :class:`CheckpointError`, before anything is
    written, for a model that the format cannot express, with what to do.
    """
    to, check = request.to, request.check
    inventory = inventory_for(request.checkpoint)
    open_tensors(inventory)  # refused here where they are not on this machine
    refuse_incomplete(inventory)
    target = (
        Path(f"{Path(inventory.path).resolve().name}-{to}")
        if request.out is None
        else Path(request.out)
    )
    refuse_target(target, inventory)
    prepared = FORMATS[to](inventory, request)
    why = prepared.no_engine or cannot_run(inventory, prepared.engine)
    if check == "engine" and why:
        raise CheckpointError(f"--check engine: {why}; --check tensors reads the output back")
    written = prepared.write(target, request.progress)
    by_engine = check != "tensors" and not why
    checked = prepared.run(target, request.progress) if by_engine else prepared.compare(target)
    notes = (why,) if check == "auto" and why else ()
    return ExportResult(
        **vars(written) | {"notes": (*written.notes, *notes, *checked.notes)},
        source=inventory.path,
        out=str(target),
        to=to,
        check=checked,
        serve=prepared.serve.format(out=target),
    )


export = verb("export", ExportRequest, _export)
