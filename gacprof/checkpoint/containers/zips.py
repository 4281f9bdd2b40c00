"""The table of contents of a zip file, from its central directory, without unpacking.

``torch.save`` stores its records uncompressed. So anything compressed is refused, and with it
every zip bomb; what remains is a table of names, offsets and sizes, each checked against the
file. Zip64 records are read (checkpoints above 4 GiB). Layout after APPNOTE.TXT 6.3, sections
4.3 and 4.5.3.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from gacprof.checkpoint.folder import Folder
from gacprof.core.errors import CheckpointError

_END = b"PK\x05\x06"
_END64 = b"PK\x06\x06"
_LOCATOR64 = b"PK\x06\x07"
_ENTRY = b"PK\x01\x02"
_LOCAL = b"PK\x03\x04"
_MAX_TAIL = 22 + 0xFFFF  # the end record and its longest comment
_MAX_DIRECTORY = 64 << 20
_NONE16, _NONE32 = 0xFFFF, 0xFFFFFFFF


@dataclass(frozen=True)
class Entry:
    """One record: ``size`` bytes, its local header at ``header``."""

    name: str
    size: int
    header: int


def read_entries(folder: Folder, name: str) -> dict[str, Entry]:
    """The entries of a zip file by name. Raises :class:`CheckpointError`."""
    where = f"{folder.location}/{name}"
    size = folder.size(name)
    count, length, start = _find_directory(folder, name, size, where)
    if length > _MAX_DIRECTORY or start + length > size:
        raise CheckpointError(f"{where}: zip directory does not fit the file; truncated or corrupt")
    entries: dict[str, Entry] = {}
    data, at = folder.read(name, start, length), 0
    for _ in range(count):
        entry, at = _parse_entry(data, at, where)
        if entry.name in entries:
            raise CheckpointError(f"{where}: zip entry {entry.name[:80]!r} is there twice")
        entries[entry.name] = entry
    _check_overlap(entries, start, where)
    return entries


def data_offset(folder: Folder, name: str, entry: Entry) -> int:
    """Where the bytes of an entry begin: its local header has a length of its own."""
    head = folder.read(name, entry.header, 30)
    if head[:4] != _LOCAL:
        raise CheckpointError(f"{folder.location}/{name}: zip entry {entry.name!r} has no header")
    name_length, extra_length = struct.unpack_from("<HH", head, 26)
    start = entry.header + 30 + int(name_length) + int(extra_length)
    if start + entry.size > folder.size(name):
        raise CheckpointError(f"{folder.location}/{name}: zip entry {entry.name!r} is truncated")
    return start


def _find_directory(folder: Folder, name: str, size: int, where: str) -> tuple[int, int, int]:
    """Entry count, length and offset of the central directory."""
    tail_start = max(0, size - _MAX_TAIL)
    tail = folder.read(name, tail_start, size - tail_start)
    at = tail.rfind(_END)
    if at < 0 or len(tail) - at < 22:
        raise CheckpointError(
            f"{where}: not a whole zip file (no end record); truncated or corrupt"
        )
    count, length, start = struct.unpack_from("<HII", tail, at + 10)
    if count != _NONE16 and _NONE32 not in (length, start):
        return count, length, start
    locator = tail_start + at - 20
    if locator < 0:
        raise CheckpointError(f"{where}: zip64 record missing")
    mark, _, end64, _ = struct.unpack("<4sIQI", folder.read(name, locator, 20))
    if mark != _LOCATOR64:
        return count, length, start
    if end64 > size - 56:
        raise CheckpointError(f"{where}: zip64 record lies outside the file")
    record = folder.read(name, end64, 56)
    if record[:4] != _END64:
        raise CheckpointError(f"{where}: zip64 record missing")
    count, length, start = struct.unpack_from("<QQQ", record, 32)
    return count, length, start


def _parse_entry(data: bytes, at: int, where: str) -> tuple[Entry, int]:
    if data[at : at + 4] != _ENTRY or len(data) - at < 46:
        raise CheckpointError(f"{where}: zip directory is broken at byte {at}")
    flags, method = struct.unpack_from("<HH", data, at + 8)
    packed, size, n_name, n_extra, n_comment = struct.unpack_from("<IIHHH", data, at + 20)
    (header,) = struct.unpack_from("<I", data, at + 42)
    end = at + 46 + n_name + n_extra + n_comment
    if end > len(data):
        raise CheckpointError(f"{where}: zip directory is broken at byte {at}")
    name = data[at + 46 : at + 46 + n_name].decode("utf-8", "replace")
    extra = data[at + 46 + n_name : at + 46 + n_name + n_extra]
    size, packed, header = _widen(extra, size, packed, header)
    if method != 0 or flags & 1 or packed != size:
        raise CheckpointError(
            f"{where}: zip entry {name[:80]!r} is compressed or encrypted, which torch.save never "
            "does; load it where you trust it and save it again"
        )
    return Entry(name, size, header), end


def _widen(extra: bytes, size: int, packed: int, header: int) -> tuple[int, int, int]:
    """Sizes above 4 GiB stand in extra field 1, only those that did not fit, in this order."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == 1:
            wide = extra[at + 4 : at + 4 + length]
            values = [int.from_bytes(wide[i : i + 8], "little") for i in range(0, len(wide), 8)]
            values.reverse()
            size = values.pop() if size == _NONE32 and values else size
            packed = values.pop() if packed == _NONE32 and values else packed
            header = values.pop() if header == _NONE32 and values else header
            break
        at += 4 + length
    return size, packed, header


def _check_overlap(entries: dict[str, Entry], directory: int, where: str) -> None:
    at = 0
    for entry in sorted(entries.values(), key=lambda e: e.header):
        if entry.header < at:
            raise CheckpointError(f"{where}: zip entry {entry.name[:80]!r} overlaps another")
        at = entry.header + 30 + entry.size
    if at > directory:
        raise CheckpointError(f"{where}: zip entries run into the directory; corrupt")
