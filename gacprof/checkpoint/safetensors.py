"""safetensors: 8 bytes of header length, a JSON header, then the tensors' bytes.

The header is checked before any of it is used: length against the file, every offset against
the data, shapes against offsets, no overlap and no gap. The rules are those of the format's
description (github.com/huggingface/safetensors, "Format").
"""

from __future__ import annotations

from typing import Any

from gacprof.checkpoint.folder import Folder, parse_json
from gacprof.checkpoint.inventory import Contents, TensorInfo
from gacprof.core.dtypes import BY_CODE
from gacprof.core.errors import CheckpointError
from gacprof.core.points import MAX_DIM

MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""

MAX_OFFSET = 1 << 48

MAX_TENSORS = 500_000
"""The largest public models (671B, one tensor per expert and part) have about 92 000."""


def read_safetensors(folder: Folder, name: str) -> Contents:
    """The tensors of one file, from its header. Raises :class:`CheckpointError`."""
    header = read_header(folder, name)
    where, size = f"{folder.location}/{name}", folder.size(name)
    tensors = parse_header(header, 8 + len(header), size, name, where)
    return Contents(tensors, container="safetensors")


def read_header(folder: Folder, name: str) -> bytes:
    """The JSON header of one file as it is. Raises :class:`CheckpointError`."""
    where = f"{folder.location}/{name}"
    size = folder.size(name)
    if size < 8:
        raise CheckpointError(f"{where}: {size} bytes is too short for a safetensors file")
    length = int.from_bytes(folder.read(name, 0, 8), "little")
    if length > MAX_HEADER_BYTES or 8 + length > size:
        raise CheckpointError(
            f"{where}: header of {length} bytes does not fit (file {size} bytes, format limit "
            f"{MAX_HEADER_BYTES}); not a safetensors file, or truncated"
        )
    return folder.read(name, 8, length)


def parse_header(
    header: bytes, start: int, size: int, file: str, where: str
) -> dict[str, TensorInfo]:
    """Check a header and return its tensors; ``start`` is where the data begins in the file."""
    entries = parse_json(header, where)
    metadata = entries.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise CheckpointError(f"{where}: __metadata__ is not a map of strings")
    tensors = {name: _tensor(name, entry, start, file, where) for name, entry in entries.items()}
    if len(tensors) > MAX_TENSORS:
        raise CheckpointError(f"{where}: {len(tensors)} tensors are more than any model has")
    _check_tiling(tensors, start, size, where)
    return tensors


def _tensor(name: str, entry: Any, start: int, file: str, where: str) -> TensorInfo:
    what = f"{where}: tensor {name[:120]!r}"
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(f"{what}: entry is not dtype, shape and data_offsets")
    element = BY_CODE.get(entry["dtype"]) if isinstance(entry["dtype"], str) else None
    if element is None:
        raise CheckpointError(f"{what}: dtype {str(entry['dtype'])[:40]!r} is not known")
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not _are_sizes(shape, MAX_DIM):
        raise CheckpointError(f"{what}: shape {str(shape)[:80]} is not a list of sizes")
    if not _are_sizes(offsets, MAX_OFFSET) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CheckpointError(f"{what}: data_offsets {str(offsets)[:80]} are not a range")
    info = TensorInfo(
        name, tuple(shape), element.name, file, start + offsets[0], offsets[1] - offsets[0]
    )
    if info.numel * element.itemsize != info.nbytes:
        raise CheckpointError(
            f"{what}: shape {shape} in {element.name} needs {info.numel * element.itemsize} "
            f"bytes, its data_offsets hold {info.nbytes}"
        )
    return info


def _are_sizes(value: Any, most: int) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= 64
        and all(type(n) is int and 0 <= n <= most for n in value)
    )


def _check_tiling(tensors: dict[str, TensorInfo], start: int, size: int, where: str) -> None:
    """Every byte of the data belongs to exactly one tensor."""
    at = start
    for info in sorted(tensors.values(), key=lambda t: (t.offset or 0, t.nbytes)):
        if info.offset != at:
            fault = "overlaps another" if (info.offset or 0) < at else "leaves a gap before it"
            raise CheckpointError(f"{where}: tensor {info.name[:120]!r} {fault}")
        at += info.nbytes
    if at != size:
        raise CheckpointError(
            f"{where}: the header describes {at} bytes, the file has {size}; truncated or corrupt"
        )
