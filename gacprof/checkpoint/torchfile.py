"""torch.save files in the zip format (torch/serialization.py).

``<root>/data.pkl`` and one record per storage, ``<root>/data/<key>``, all uncompressed. So
anything compressed is refused, and with it every zip bomb. Only the table of contents, the pickle
and the records' 30-byte headers are read; nothing is unpacked.
"""

from __future__ import annotations

import math
import struct
import zipfile
from collections.abc import Mapping
from typing import Any

from gacprof.checkpoint.folder import Folder, LocalFolder
from gacprof.checkpoint.inventory import Contents, TensorInfo
from gacprof.checkpoint.pickled import TensorRef, find_state
from gacprof.checkpoint.unpickle import unpickle
from gacprof.core.dtypes import element_type
from gacprof.core.errors import CheckpointError

MAX_PICKLE_BYTES = 64 << 20
"""Whole-model pickles carry a tokenizer, seldom more than 10 MB; tensors are not in there."""

MAX_DIRECTORY_BYTES = 64 << 20
"""Of a zip file. A record takes about 70 bytes of it."""

LEGACY_MAGIC = b"\x80\x02\x8a\x0al\xfc\x9c\x46\xf9\x20\x6a\xa8"
"""How files of torch before 1.6 begin: a pickle of the long integer 0x1950A86A20F9469CFC6C."""

MAX_STRETCH = 32
"""Views share a storage: together a file's tensors may be so many times its own size. A copy of
them (realigned, loaded) holds each whole, and 12 KB must not become gigabytes."""

_BROKEN_ZIP = (zipfile.BadZipFile, NotImplementedError, OSError, ValueError, struct.error)
_TAIL = 128 << 10


class _ZipSource:
    """A file of a folder as :class:`zipfile.ZipFile` reads it.

    The end of the file, where small directories are, is read once: on a hub each read is a request.
    """

    def __init__(self, folder: Folder, name: str) -> None:
        self._folder, self._name, self._size = folder, name, folder.size(name)
        self._tail_start = max(0, self._size - _TAIL)
        self._tail = folder.read(name, self._tail_start, self._size - self._tail_start)
        self._at = 0

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        at = offset + (0, self._at, self._size)[whence]
        if at < 0:
            raise OSError("seek before the start")
        self._at = at
        return at

    def read(self, length: int = -1) -> bytes:
        start = self._at
        end = self._size if length < 0 else min(start + length, self._size)
        if end <= start:
            return b""
        if end - start > MAX_DIRECTORY_BYTES:
            raise OSError("its directory is too large")
        self._at = end
        if start >= self._tail_start:
            return self._tail[start - self._tail_start : end - self._tail_start]
        return self._folder.read(self._name, start, end - start)


class _Records:
    """The records of a zip file by name, none of them read.

    Raises :class:`CheckpointError` for compressed, encrypted, doubled or overlapping records.
    """

    def __init__(self, folder: Folder, name: str) -> None:
        self.folder, self.name, self.where = folder, name, f"{folder.location}/{name}"
        try:
            archive = zipfile.ZipFile(_ZipSource(folder, name))
        except _BROKEN_ZIP as error:
            raise CheckpointError(
                f"{self.where}: not a whole zip file ({str(error)[:100]}); truncated or corrupt"
            ) from None
        self.entries: dict[str, zipfile.ZipInfo] = {}
        for entry in archive.infolist():
            self._check(entry)
            self.entries[entry.filename] = entry
        self._check_overlap(archive.start_dir)

    def _check(self, entry: zipfile.ZipInfo) -> None:
        what = f"{self.where}: zip entry {entry.filename[:80]!r}"
        if entry.filename in self.entries:
            raise CheckpointError(f"{what} is there twice")
        is_stored = entry.compress_type == zipfile.ZIP_STORED
        if not is_stored or entry.flag_bits & 1 or entry.compress_size != entry.file_size:
            raise CheckpointError(
                f"{what} is compressed or encrypted, which torch.save never does; load it where "
                "you trust it and save it again"
            )

    def _check_overlap(self, directory: int) -> None:
        at = 0
        for entry in sorted(self.entries.values(), key=lambda e: e.header_offset):
            if entry.header_offset < at:
                raise CheckpointError(
                    f"{self.where}: zip entry {entry.filename[:80]!r} overlaps another"
                )
            at = entry.header_offset + 30 + entry.file_size
        if at > directory:
            raise CheckpointError(f"{self.where}: zip entries run into the directory; corrupt")

    def start(self, name: str) -> int:
        """Where the bytes of a record begin: its local header has a length of its own."""
        entry = self.entries[name]
        what = f"{self.where}: zip entry {name[:80]!r}"
        head = self.folder.read(self.name, entry.header_offset, 30)
        if head[:4] != b"PK\x03\x04":
            raise CheckpointError(f"{what} has no header")
        name_length, extra_length = struct.unpack_from("<HH", head, 26)
        start = entry.header_offset + 30 + int(name_length) + int(extra_length)
        if start + entry.file_size > self.folder.size(self.name):
            raise CheckpointError(f"{what} is truncated")
        return start

    def read(self, name: str, most: int) -> bytes:
        length = min(self.entries[name].file_size, most)
        return self.folder.read(self.name, self.start(name), length)


def read_torch_zip(folder: Folder, name: str) -> Contents:
    """The tensors of a zipped ``torch.save`` file. Raises :class:`CheckpointError`."""
    records = _Records(folder, name)
    where, entries = records.where, records.entries
    pickles = [n for n in entries if n == "data.pkl" or n.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise CheckpointError(f"{where}: a zip file, but not one that torch.save wrote")
    root = pickles[0].removesuffix("data.pkl")
    if f"{root}constants.pkl" in entries:
        raise CheckpointError(f"{where}: a TorchScript archive is code, not a checkpoint")
    size = entries[pickles[0]].file_size
    if size > MAX_PICKLE_BYTES:
        raise CheckpointError(f"{where}: its pickle of {size} bytes is too large")
    if f"{root}byteorder" in entries:
        order = records.read(f"{root}byteorder", 16)
        if order.strip() != b"little":
            raise CheckpointError(f"{where}: byte order {order!r} is not read, only little")
    pickled = unpickle(records.read(pickles[0], size), where)
    # A hub's record headers would cost one request each; without them sizes suffice.
    is_local = isinstance(folder, LocalFolder)
    records_of = {key: f"{root}data/{key}" for key in pickled.storages}
    storages = {
        key: (records.start(record) if is_local else None, entries[record].file_size)
        for key, record in records_of.items()
        if record in entries
    }
    return _contents(name, pickled.value, storages, where)


def _contents(
    file: str, value: Any, storages: Mapping[str, tuple[int | None, int]], where: str
) -> Contents:
    """The tensors of a pickle's ``value``; ``storages`` are their offsets and sizes in bytes."""
    state = find_state(value, where)
    tensors = {}
    for name, ref in state.tensors.items():
        if ref.storage.key not in storages:
            raise CheckpointError(f"{where}: storage {ref.storage.key[:40]!r} is missing")
        tensors[name] = located(name, ref, file, *storages[ref.storage.key], where)
    whole, stored = sum(t.nbytes for t in tensors.values()), sum(n for _, n in storages.values())
    if whole > max(MAX_STRETCH * stored, _TAIL * MAX_STRETCH):
        raise CheckpointError(
            f"{where}: its tensors are views that take {whole:,} bytes of {stored:,} stored: "
            "not a model"
        )
    notes = (*state.notes, *_shared_notes(tensors))
    return Contents(
        tensors, state.config, attributes=state.attributes, container="torch", notes=notes
    )


def located(
    name: str, ref: TensorRef, file: str, start: int | None, nbytes: int, where: str
) -> TensorInfo:
    """A tensor in its storage of ``nbytes`` at ``start`` of ``file``; checks that it fits."""
    element = element_type(ref.dtype)
    numel = math.prod(ref.shape)
    last = ref.offset + sum((n - 1) * s for n, s in zip(ref.shape, ref.stride, strict=True))
    if numel > 0 and (last + 1) * element.itemsize > nbytes:
        raise CheckpointError(
            f"{where}: tensor {name[:120]!r} {list(ref.shape)} reaches beyond its storage of "
            f"{nbytes} bytes; truncated or corrupt"
        )
    offset = None if start is None else start + ref.offset * element.itemsize
    contiguous = numel == 0 or _is_contiguous(ref.shape, ref.stride)
    stride = None if contiguous else ref.stride
    return TensorInfo(name, ref.shape, ref.dtype, file, offset, numel * element.itemsize, stride)


def _is_contiguous(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    expected = 1
    for size, step in zip(reversed(shape), reversed(stride), strict=True):
        if size != 1 and step != expected:
            return False
        expected *= size
    return True


def _shared_notes(tensors: Mapping[str, TensorInfo]) -> list[str]:
    """Which names are one stored tensor (tied embeddings)."""
    first: dict[object, str] = {}
    notes = []
    for name, info in tensors.items():
        other = first.setdefault(info.stored_at, name) if info.numel else name
        if other != name:
            notes.append(f"{name} and {other} are one stored tensor")
    return notes
