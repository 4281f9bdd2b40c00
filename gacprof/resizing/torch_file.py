"""Writing a state dict as ``torch.save`` does, tensor by tensor and without torch.

The format is a zip of stored (not compressed) entries: ``data.pkl`` names the tensors and
points to ``data/0``, ``data/1`` … which are their raw bytes, each at a multiple of 64 bytes so
that ``torch.load(mmap=True)`` can map them (torch/csrc/jit/serialization, inline_container).
"""

from __future__ import annotations

import os
import pickle
import struct
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gacprof.checkpoint.tensors import TensorReader
from gacprof.core.dtypes import BY_STORAGE
from gacprof.core.errors import CheckpointError
from gacprof.resizing.fusion import Output, blocks
from gacprof.resizing.resolve import Resolver
from gacprof.resizing.safetensors_file import Progress, nbytes

ALIGNMENT = 64
STORAGE = {name: storage for storage, name in BY_STORAGE.items() if storage != "UntypedStorage"}
ZIP64_FROM = 1 << 31


def write_torch(
    path: Path,
    edits: Sequence[Output],
    reader: TensorReader,
    resolver: Resolver,
    progress: Progress,
) -> bool:
    """Write ``path`` whole, or leave it alone if it is already. Returns whether it was."""
    if path.is_file():
        progress(sum(nbytes(edit) for edit in edits))
        return True
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr(_entry("data.pkl", 0), _directory(edits))
            archive.writestr(_entry("byteorder", file.tell()), b"little")
            for i, edit in enumerate(edits):
                size = nbytes(edit)
                entry = _entry(f"data/{i}", file.tell(), size)
                with archive.open(entry, "w", force_zip64=size >= ZIP64_FROM) as target:
                    for block in blocks(edit, reader, resolver):
                        target.write(block.reshape(-1).view(np.uint8).data)
                        progress(block.nbytes)
            archive.writestr(_entry("version", file.tell()), b"3\n")
        file.flush()
        os.fsync(file.fileno())
    partial.rename(path)
    return False


def _entry(name: str, position: int, size: int = 0) -> zipfile.ZipInfo:
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


def _directory(edits: Sequence[Output]) -> bytes:
    """The pickle of a dict from tensor names to references to the entries."""
    parts = [pickle.PROTO, b"\x02", pickle.EMPTY_DICT, pickle.MARK]
    for i, edit in enumerate(edits):
        parts += [_text(edit.name), _tensor(i, edit)]
    return b"".join([*parts, pickle.SETITEMS, pickle.STOP])


def _tensor(index: int, edit: Output) -> bytes:
    """``_rebuild_tensor_v2(storage, 0, shape, strides, requires_grad=False, hooks={})``."""
    strides: list[int] = []
    step = 1
    for size in reversed(edit.shape):
        strides.insert(0, step)
        step *= size
    storage = STORAGE.get(edit.dtype)
    if storage is None:
        raise CheckpointError(f"'{edit.name}': torch.save files hold no {edit.dtype}")
    where = [_text("storage"), _global("torch", storage), _text(str(index)), _text("cpu")]
    arguments = [
        _tuple([*where, _integer(step)]) + pickle.BINPERSID,
        _integer(0),
        _tuple([_integer(size) for size in edit.shape]),
        _tuple([_integer(stride) for stride in strides]),
        pickle.NEWFALSE,
        _global("collections", "OrderedDict") + pickle.EMPTY_TUPLE + pickle.REDUCE,
    ]
    return _global("torch._utils", "_rebuild_tensor_v2") + _tuple(arguments) + pickle.REDUCE


def _tuple(parts: Sequence[bytes]) -> bytes:
    return pickle.MARK + b"".join(parts) + pickle.TUPLE


def _global(module: str, name: str) -> bytes:
    return pickle.GLOBAL + f"{module}\n{name}\n".encode()


def _text(value: str) -> bytes:
    data = value.encode("utf-8", "surrogatepass")
    return pickle.BINUNICODE + struct.pack("<I", len(data)) + data


def _integer(value: int) -> bytes:
    data = value.to_bytes(8, "little", signed=True)
    return pickle.LONG1 + bytes([len(data)]) + data
