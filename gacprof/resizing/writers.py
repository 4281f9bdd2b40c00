"""Writing one weights file, tensor by tensor: safetensors, or a state dict as torch.save writes it.

The libraries want all tensors at once; here one block of one tensor is in memory, and torch is
not needed.

A torch file is a zip of stored (not compressed) entries: ``data.pkl`` names the tensors and
points to ``data/0``, ``data/1`` … which are their raw bytes, each at a multiple of 64 bytes so
that ``torch.load(mmap=True)`` can map them (torch/csrc/jit/serialization, inline_container).
"""

from __future__ import annotations

import errno
import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np

from gacprof.checkpoint.inventory import TensorInfo
from gacprof.core.dtypes import BY_STORAGE, element_type
from gacprof.core.errors import CheckpointError
from gacprof.resizing.changes import NewTensor
from gacprof.resizing.segments import Array
from gacprof.resizing.values import Resizer

Advance = Callable[[int], None]
"""Called with the bytes written since the last call."""

COPY_BYTES = 16 << 20
"""Copied at a time: progress stays visible, the calls cost nothing."""

ALIGNMENT = 64
STORAGE = {name: storage for storage, name in BY_STORAGE.items() if storage != "UntypedStorage"}
ZIP64_FROM = 1 << 31


@dataclass(frozen=True)
class WeightsFile:
    """One file of the output and the tensors in it. ``metadata`` is for safetensors."""

    name: str
    kind: Literal["safetensors", "torch"]
    tensors: tuple[NewTensor, ...]
    metadata: Mapping[str, str]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    def write(self, folder: Path, resizer: Resizer, advance: Advance) -> bool:
        """Write the file whole, or leave it alone if it is already. Returns whether it was.

        The name appears only when the file is complete and on the disk.
        """
        path, as_torch = folder / self.name, self.kind == "torch"
        tensors = self.tensors if as_torch else _in_file_order(self.tensors)
        header = b"" if as_torch else safetensors_header(tensors, self.metadata)
        size = len(header) + self.nbytes
        if _is_finished(path, header, None if as_torch else size):
            advance(size)
            return True
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + ".partial")
        with partial.open("wb") as file:
            if as_torch:
                _write_torch(file, tensors, resizer, advance)
            else:
                _write_safetensors(file, header, tensors, resizer, advance)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)
        return False


def _is_finished(path: Path, header: bytes, size: int | None) -> bool:
    """Whether ``path`` is a file of ``size`` bytes, if that is known, beginning with the header."""
    if not path.is_file() or (size is not None and path.stat().st_size != size):
        return False
    with path.open("rb") as file:
        return file.read(len(header)) == header


def _in_file_order(tensors: Sequence[NewTensor]) -> list[NewTensor]:
    """Wide elements first, so that every tensor is aligned to its own element size whatever
    the others' sizes; else as the source has them, so that it is read front to back."""
    return sorted(
        tensors,
        key=lambda t: (-element_type(t.dtype).itemsize, t.sources[0].offset or 0, t.name),
    )


def safetensors_header(tensors: Sequence[NewTensor], metadata: Mapping[str, str]) -> bytes:
    """Length and JSON header of a file that holds ``tensors`` in this order.

    The header is filled up with spaces to a multiple of 8 bytes, as the format asks for.
    """
    entries: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for tensor in tensors:
        code = element_type(tensor.dtype).code
        if code is None:
            raise CheckpointError(
                f"'{tensor.name}': safetensors has no element type {tensor.dtype}"
            )
        end = at + tensor.nbytes
        entries[tensor.name] = {
            "dtype": code,
            "shape": list(tensor.shape),
            "data_offsets": [at, end],
        }
        at = end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _write_safetensors(
    file: BinaryIO,
    header: bytes,
    tensors: Sequence[NewTensor],
    resizer: Resizer,
    advance: Advance,
) -> None:
    file.write(header)
    advance(len(header))
    folder = Path(resizer.reader.inventory.folder)
    for tensor in tensors:
        if tensor.unchanged and _copy(file, folder, tensor.sources[0], advance):
            continue
        for block in resizer.blocks(tensor):
            file.write(_bytes(block))
            advance(block.nbytes)


def _copy(file: BinaryIO, folder: Path, info: TensorInfo, advance: Advance) -> bool:
    """Let the kernel copy a stored tensor's bytes; returns whether it could."""
    if info.offset is None or info.stride is not None or not hasattr(os, "copy_file_range"):
        return False
    file.flush()
    done = 0
    with (folder / info.file).open("rb") as source:
        while done < info.nbytes:
            count = min(info.nbytes - done, COPY_BYTES)
            try:
                copied = os.copy_file_range(
                    source.fileno(), file.fileno(), count, info.offset + done
                )
            except OSError:
                if done:
                    raise
                return False  # not between these two files
            if not copied and not done:
                return False  # some file systems say so by copying nothing
            if not copied:
                raise OSError(errno.EIO, "the source ended early: was it changed meanwhile?")
            advance(copied)
            done += copied
    file.seek(0, os.SEEK_END)
    return True


def _bytes(block: Array) -> memoryview:
    """The bytes of a C-contiguous array."""
    return block.reshape(-1).view(np.uint8).data


def _write_torch(
    file: BinaryIO, tensors: Sequence[NewTensor], resizer: Resizer, advance: Advance
) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(_zip_entry("data.pkl", 0), _state_dict(tensors))
        archive.writestr(_zip_entry("byteorder", file.tell()), b"little")
        for i, tensor in enumerate(tensors):
            entry = _zip_entry(f"data/{i}", file.tell(), tensor.nbytes)
            with archive.open(entry, "w", force_zip64=tensor.nbytes >= ZIP64_FROM) as target:
                for block in resizer.blocks(tensor):
                    target.write(_bytes(block))
                    advance(block.nbytes)
        archive.writestr(_zip_entry("version", file.tell()), b"3\n")


def _zip_entry(name: str, position: int, size: int = 0) -> zipfile.ZipInfo:
    """An entry whose data will lie at a multiple of 64 bytes when its header is at ``position``.

    The gap is filled by an extra field, ``FB`` as in torch's own files.
    """
    entry = zipfile.ZipInfo(f"archive/{name}")
    zip64 = 20 if size >= ZIP64_FROM else 0  # zipfile's own extra field
    header = position + 30 + len(entry.filename) + zip64 + 4
    padding = -header % ALIGNMENT
    entry.extra = struct.pack("<2sH", b"FB", padding) + b"Z" * padding
    entry.file_size = size
    return entry


def _state_dict(tensors: Sequence[NewTensor]) -> bytes:
    """The pickle of a dict from tensor names to references to the entries, opcode by opcode:
    the pickle module would have to import what it names."""
    items = b"".join(_plain(t.name) + _reference(i, t) for i, t in enumerate(tensors))
    return b"\x80\x02}(" + items + b"u."


def _reference(index: int, tensor: NewTensor) -> bytes:
    """``_rebuild_tensor_v2(storage, 0, shape, strides, requires_grad=False, hooks={})``."""
    storage = STORAGE.get(tensor.dtype)
    if storage is None:
        raise CheckpointError(f"'{tensor.name}': torch.save files hold no {tensor.dtype}")
    shape = tensor.shape
    strides = tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))
    kind = f"ctorch\n{storage}\n".encode()
    return b"".join(
        [
            b"ctorch._utils\n_rebuild_tensor_v2\n((",
            *(_plain("storage"), kind, _plain(str(index)), _plain("cpu"), _plain(prod(shape))),
            *(b"tQ", _plain(0), _plain(shape), _plain(strides)),
            b"\x89ccollections\nOrderedDict\n)RtR",
        ]
    )


def _plain(value: Any) -> bytes:
    """The opcodes of a string, a number or a tuple of numbers."""
    return pickle.dumps(value, protocol=2)[2:-1]
