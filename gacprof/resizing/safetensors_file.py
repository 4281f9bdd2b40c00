"""Writing a safetensors file front to back: header first, then every tensor as it comes.

The safetensors library wants all tensors at once; here one block of one tensor is in memory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from gacprof.checkpoint.tensors import TensorReader
from gacprof.core.dtypes import element_type
from gacprof.core.errors import CheckpointError
from gacprof.resizing.edits import Edit
from gacprof.resizing.fusion import Output, blocks
from gacprof.resizing.output import OutputFile
from gacprof.resizing.resolve import Resolver

Progress = Callable[[int], None]
"""Told the bytes written since the last call."""


def in_file_order(edits: Sequence[Output]) -> list[Output]:
    """Wide elements first, so that every tensor is aligned to its own element size whatever
    the others' sizes; else as the source has them, so that it is read front to back."""
    return sorted(
        edits,
        key=lambda e: (-element_type(e.dtype).itemsize, e.sources[0].offset or 0, e.name),
    )


def header(edits: Sequence[Output], metadata: Mapping[str, str]) -> bytes:
    """Length and JSON header of a file that holds ``edits`` in this order.

    The header is filled up with spaces to a multiple of 8 bytes, as the format asks for.
    """
    entries: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for edit in edits:
        code = element_type(edit.dtype).code
        if code is None:
            raise CheckpointError(f"'{edit.name}': safetensors has no element type {edit.dtype}")
        end = at + nbytes(edit)
        entries[edit.name] = {
            "dtype": code,
            "shape": list(edit.shape),
            "data_offsets": [at, end],
        }
        at = end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def nbytes(edit: Output) -> int:
    """Bytes of the tensor after its changes."""
    total = element_type(edit.dtype).itemsize
    for size in edit.shape:
        total *= size
    return total


def is_finished(path: Path, head: bytes, size: int) -> bool:
    """Whether ``path`` is a file of ``size`` bytes that begins with this header."""
    if not path.is_file() or path.stat().st_size != size:
        return False
    with path.open("rb") as file:
        return file.read(len(head)) == head


def write_safetensors(
    path: Path,
    edits: Sequence[Output],
    metadata: Mapping[str, str],
    reader: TensorReader,
    resolver: Resolver,
    progress: Progress,
) -> bool:
    """Write ``path`` whole, or leave it alone if it is already. Returns whether it was.

    The name appears only when the file is complete and on the disk.
    """
    edits = in_file_order(edits)
    head = header(edits, metadata)
    size = len(head) + sum(nbytes(edit) for edit in edits)
    if is_finished(path, head, size):
        progress(size)
        return True
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with OutputFile(partial) as output:
        output.write(head)
        progress(len(head))
        for run in _runs(edits):
            first = run[0]
            if isinstance(first, Edit) and _is_copied(first):
                _copy(output, first, sum(nbytes(edit) for edit in run), reader, progress)
                continue
            for block in blocks(first, reader, resolver):
                output.write(block)
                progress(block.nbytes)
        output.sync()
    partial.rename(path)
    return False


def _runs(edits: Sequence[Output]) -> Iterator[list[Output]]:
    """Unchanged tensors that lie one behind the other in the source together, others alone."""
    run: list[Output] = []
    for edit in edits:
        if run and not (_is_copied(run[-1]) and _is_copied(edit) and _follows(run[-1], edit)):
            yield run
            run = []
        run.append(edit)
    if run:
        yield run


def _is_copied(edit: Output) -> bool:
    """Whether the tensor's bytes can go over as they lie in the source."""
    if not isinstance(edit, Edit) or edit.places:
        return False
    return edit.info.offset is not None and edit.info.stride is None


def _follows(first: Output, second: Output) -> bool:
    a, b = first.sources[0], second.sources[0]
    return a.file == b.file and (a.offset or 0) + a.nbytes == b.offset


def _copy(
    output: OutputFile, first: Edit, count: int, reader: TensorReader, progress: Progress
) -> None:
    source = os.open(Path(reader.inventory.folder) / first.info.file, os.O_RDONLY)
    try:
        output.copy(source, first.info.offset or 0, count, progress)
    finally:
        os.close(source)
