"""Tensors of a safetensors file, from its header.

A file begins with the header's length (8 bytes, little endian) and the header, a JSON object of
element type, shape and range of bytes by tensor (https://github.com/huggingface/safetensors#format).
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from gacprof.checkpoint.inventory import Contents, TensorInfo
from gacprof.core.dtypes import BY_CODE
from gacprof.core.errors import CheckpointError

MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""


def read_safetensors(path: Path) -> Contents:
    """Return the tensors of one file, none of their data read. Raises :class:`CheckpointError`."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > min(size, MAX_HEADER_BYTES):
                raise ValueError(f"its header has {length} bytes, the file {size}")
            entries = json.loads(file.read(length))
        metadata = entries.pop("__metadata__", {})
        tensors = [tensor_info(name, e, path.name, 8 + length) for name, e in entries.items()]
        end = max(((info.offset or 0) + info.nbytes for info in tensors), default=0)
        if end > size:
            raise ValueError(f"its header describes {end} bytes, the file has {size}")
    except (AttributeError, KeyError, OSError, RecursionError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(
            f"{path} is no whole safetensors file: {reason}: fetch it again"
        ) from None
    by_name = {info.name: info for info in tensors}
    return Contents(by_name, container="safetensors", metadata={path.name: metadata})


def tensor_info(name: str, entry: dict[str, Any], file: str, start: int) -> TensorInfo:
    """Return a header's entry as a tensor whose data are counted from ``start`` of the file.

    Raises ``KeyError``, ``TypeError`` or ``ValueError`` for an entry that contradicts itself.
    """
    element, shape = BY_CODE[entry["dtype"]], tuple(entry["shape"])
    begin, end = entry["data_offsets"]
    is_counts = all(type(number) is int and number >= 0 for number in (*shape, begin))
    if not is_counts or math.prod(shape) * element.itemsize != end - begin:
        raise ValueError(f"tensor {name[:100]!r} of shape {shape} has {end - begin} bytes")
    return TensorInfo(name, shape, element.name, file, start + begin, end - begin)
