"""Export a checkpoint: say what cannot be expressed, write, check."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gacprof.checkpoint import inventory_for, open_tensors
from gacprof.checkpoint.inventory import Inventory
from gacprof.core import Progress
from gacprof.core.errors import CheckpointError
from gacprof.core.files import Record
from gacprof.extras.serve import gguf, transformers, vllm
from gacprof.extras.serve.checking import cannot_run
from gacprof.extras.serve.format import Check, CheckWith, Prepare, Request
from gacprof.resizing.output import refuse_incomplete
from gacprof.resizing.workspace import refuse_target

FORMATS: dict[str, Prepare] = {
    "transformers": transformers.prepare,
    "vllm": vllm.prepare,
    "vllm-native": vllm.prepare_native,
    "gguf": gguf.prepare,
    "uniform": transformers.prepare_uniform,
}


@dataclass(frozen=True)
class Exported(Record):
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


def export(
    checkpoint: str | Path | Inventory,
    to: str,
    out: str | Path | None = None,
    *,
    type: str | None = None,
    blocks_of: int | None = None,
    tokenizer: str | Path | None = None,
    tokenizer_pre: str | None = None,
    check: CheckWith = "auto",
    progress: Progress | None = None,
) -> Exported:
    """Write ``checkpoint`` as a folder that an engine loads, and check what was written.

    ``to`` is ``transformers`` (factor pairs, widths and heads per layer, with its own model code),
    ``vllm`` (the same for its Transformers backend), ``vllm-native`` (DeciLM: widths only;
    ``blocks_of=256`` for SGLang, TensorRT-LLM, mlx-lm), ``gguf`` (llama.cpp; ``type`` is f32, f16,
    bf16, q8_0 or q4_0) or ``uniform`` (a plain config). ``out`` defaults to MODEL-TO in the
    current folder. ``tokenizer`` is a folder to take the tokenizer from, ``tokenizer_pre``
    llama.cpp's name of its pre-tokenizer. ``check`` is ``engine`` (the same 32 greedy tokens),
    ``tensors`` (read back), or ``auto``: the engine where it is installed and memory suffices.

    Peak memory of writing is about the largest tensor; checking by an engine loads the model
    twice in float32, one after the other. Raises :class:`CheckpointError`, before anything is
    written, for a model that the format cannot express, with what to do.
    """
    if to not in FORMATS:
        raise CheckpointError(f"--to {to}: formats are {', '.join(FORMATS)}")
    if check not in ("auto", "engine", "tensors"):
        raise CheckpointError(f"--check {check}: check with auto, engine or tensors")
    for name, value, only in (("type", type, "gguf"), ("blocks-of", blocks_of, "vllm-native"),
                              ("tokenizer-pre", tokenizer_pre, "gguf")):  # fmt: skip
        if value is not None and to != only:
            raise CheckpointError(f"--{name} goes with --to {only}")
    if tokenizer is not None and not Path(tokenizer).is_dir():
        raise CheckpointError(f"--tokenizer {tokenizer}: there is no such folder")
    inventory = inventory_for(checkpoint)
    open_tensors(inventory)  # refused here where they are not on this machine
    refuse_incomplete(inventory)
    target = Path(f"{Path(inventory.path).resolve().name}-{to}") if out is None else Path(out)
    refuse_target(target, inventory)
    folder = Path(inventory.folder if tokenizer is None else tokenizer)
    prepared = FORMATS[to](inventory, Request(type, blocks_of, folder, tokenizer_pre))
    why = prepared.no_engine or cannot_run(inventory, prepared.engine)
    if check == "engine" and why:
        raise CheckpointError(f"--check engine: {why}; --check tensors reads the output back")
    written = prepared.write(target, progress)
    checked = prepared.run(target) if check != "tensors" and not why else prepared.compare(target)
    notes = (why,) if check == "auto" and why else ()
    return Exported(
        **vars(written) | {"notes": (*written.notes, *notes, *checked.notes)},
        source=inventory.path,
        out=str(target),
        to=to,
        check=checked,
        serve=prepared.serve.format(out=target),
    )
