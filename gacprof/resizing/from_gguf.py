"""A GGUF file written as a plain Hugging Face folder: dequantised weights, config, tokenizer.

GGUF is what llama.cpp runs, and nothing here can change a dim in its blocks. As a folder the model
can be compressed, realigned and served like any other. Dequantising takes nothing back: the
weights keep what the quantisation lost.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gacprof.checkpoint.gguf_headers import gguf_in
from gacprof.checkpoint.scanning import scan
from gacprof.core.errors import CheckpointError
from gacprof.core.files import Record, make_readable, sync
from gacprof.core.request import verb
from gacprof.resizing.output import write_provenance
from gacprof.resizing.request import ImportRequest
from gacprof.resizing.workspace import refuse_existing, require_space, workspace

if TYPE_CHECKING:
    import torch

IMPORTED = "gacprof.imported/1"
"""Schema of the record that lies beside the model."""
SHARD = "5GB"
"""The largest file that is written."""


@dataclass(frozen=True)
class ImportResult(Record):
    """Where the folder is, what of: ``dtype`` is that of the weights written."""

    source: str
    out: str
    dtype: str
    parameters: int
    tokenizer: bool
    notes: tuple[str, ...] = ()


def _import_gguf(request: ImportRequest) -> ImportResult:
    """Write the model of a GGUF file, or of the only one in a folder, as safetensors to ``out``.

    The whole model is in memory meanwhile, in ``dtype``. The folder appears whole or not at all.
    Raises :class:`CheckpointError` for a file that transformers cannot read, and where ``out``
    exists.
    """
    from gacprof.checkpoint.load import dtype_of

    source, out, numbers = Path(request.source), Path(request.out), dtype_of(request.dtype)
    refuse_existing(out)
    file = gguf_in(source)
    if file is None:
        raise CheckpointError(f"{source}: no *.gguf file, and no folder that holds a single one")
    with _parsed_once():
        return _imported(file, out, numbers)


@contextmanager
def _parsed_once() -> Iterator[None]:
    """The header of a GGUF file is parsed once: transformers opens the file for its config, its
    tokenizer and its weights anew, and a vocabulary takes seconds each time."""
    try:
        import gguf
    except ImportError:  # the first to read the file says so
        yield
        return
    reader = gguf.GGUFReader
    parsed = cache(reader)
    gguf.GGUFReader = lambda path: parsed(str(path))
    try:
        yield
    finally:
        gguf.GGUFReader = reader


def _imported(file: Path, out: Path, numbers: torch.dtype) -> ImportResult:
    from gacprof.checkpoint.config import require_transformers
    from gacprof.checkpoint.load import load_gguf, tokenizer_of
    from gacprof.checkpoint.skeleton import quiet

    inventory = scan(file)
    tokenizer = tokenizer_of(file)
    name = str(numbers).removeprefix("torch.")
    key = hashlib.sha256(f"{inventory.fingerprint} {name}".encode()).hexdigest()
    with workspace(out, key) as folder:
        require_space(folder, inventory.parameters * numbers.itemsize)
        model: Any = load_gguf(file, numbers)
        with quiet(require_transformers()):
            model.save_pretrained(folder, max_shard_size=SHARD)
            if tokenizer is not None:
                tokenizer.save_pretrained(folder)
        write_provenance(folder, inventory, IMPORTED, dtype=name, notes=list(inventory.notes))
        for written in folder.iterdir():
            if written.is_file():
                make_readable(written)
                sync(written)
    notes = (*inventory.notes, *["the file brings no tokenizer"] * (tokenizer is None))
    return ImportResult(
        str(file), str(out), name, inventory.parameters, tokenizer is not None, notes
    )


import_gguf = verb("import_gguf", ImportRequest, _import_gguf)
