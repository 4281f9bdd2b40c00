"""Writing a safetensors file front to back: header first, then every tensor as it comes.

The safetensors library wants all tensors at once; here one block of one tensor is in memory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from gacprof.checkpoint.dtypes import element_type
from gacprof.checkpoint.inventory import TensorInfo
from gacprof.checkpoint.tensors import TensorReader
from gacprof.errors import CheckpointError

from .edits import Edit
from .output import OutputFile
from .resolve import Resolver
from .rows import rows

Progress = Callable[[int], None]
"""Told the bytes written since the last call."""


def in_file_order(edits: Sequence[Edit]) -> list[Edit]:
    """Wide elements first, so that every tensor is aligned to its own element size whatever
    the others' sizes; else as the source has them, so that it is read front to back."""
    return sorted(
        edits,
        key=lambda e: (-element_type(e.info.dtype).itemsize, e.info.offset or 0, e.info.name),
    )


def header(edits: Sequence[Edit], metadata: Mapping[str, str]) -> bytes:
    """Length and JSON header of a file that holds ``edits`` in this order.

    The header is filled up with spaces to a multiple of 8 bytes, as the format asks for.
    """
    entries: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for edit in edits:
        code = element_type(edit.info.dtype).code
        if code is None:
            raise CheckpointError(
                f"'{edit.info.name}': safetensors has no element type {edit.info.dtype}"
            )
        end = at + nbytes(edit)
        entries[edit.info.name] = {
            "dtype": code,
            "shape": list(edit.shape),
            "data_offsets": [at, end],
        }
        at = end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def nbytes(edit: Edit) -> int:
    """Bytes of the tensor after its changes."""
    total = element_type(edit.info.dtype).itemsize
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
    edits: Sequence[Edit],
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
            if run[0].places or not _is_flat(run[0].info):
                write_tensor(output, run[0], reader, resolver, progress)
            else:
                _copy(output, run, reader, progress)
        output.sync()
    partial.rename(path)
    return False


def write_tensor(
    output: OutputFile, edit: Edit, reader: TensorReader, resolver: Resolver, progress: Progress
) -> None:
    """One tensor's bytes after its changes."""
    source = reader.read(edit.info.name)
    for block in rows(source, resolver.axes(edit), edit.info.dtype):
        output.write(block)
        progress(block.nbytes)


def _runs(edits: Sequence[Edit]) -> Iterator[list[Edit]]:
    """Unchanged tensors that lie one behind the other in the source together, others alone."""
    run: list[Edit] = []
    for edit in edits:
        if run and not (_is_copied(run[-1]) and _is_copied(edit) and _follows(run[-1], edit)):
            yield run
            run = []
        run.append(edit)
    if run:
        yield run


def _is_copied(edit: Edit) -> bool:
    return not edit.places and _is_flat(edit.info)


def _is_flat(info: TensorInfo) -> bool:
    return info.offset is not None and info.stride is None


def _follows(first: Edit, second: Edit) -> bool:
    end = (first.info.offset or 0) + first.info.nbytes
    return first.info.file == second.info.file and end == second.info.offset


def _copy(
    output: OutputFile, run: Sequence[Edit], reader: TensorReader, progress: Progress
) -> None:
    first, count = run[0].info, sum(edit.info.nbytes for edit in run)
    source = os.open(Path(reader.inventory.folder) / first.file, os.O_RDONLY)
    try:
        output.copy(source, first.offset or 0, count, progress)
    finally:
        os.close(source)
