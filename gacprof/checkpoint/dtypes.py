"""Element types: the names the containers use, torch's names, and what numpy can carry.

numpy has no bfloat16 and no float8, so a tensor of those is *carried* as unsigned integers
of the same width: slicing, padding with zeros and writing keep every bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gacprof.core.errors import CheckpointError


@dataclass(frozen=True)
class ElementType:
    """``name`` is torch's, ``code`` is safetensors', ``carrier`` numpy's of the same width."""

    name: str
    code: str | None
    carrier: str

    @property
    def itemsize(self) -> int:
        return np.dtype(self.carrier).itemsize

    @property
    def numpy(self) -> np.dtype[Any]:
        return np.dtype(self.carrier)


_TYPES = (
    ElementType("float64", "F64", "<f8"),
    ElementType("float32", "F32", "<f4"),
    ElementType("float16", "F16", "<f2"),
    ElementType("bfloat16", "BF16", "<u2"),
    ElementType("float8_e4m3fn", "F8_E4M3", "|u1"),
    ElementType("float8_e4m3fnuz", "F8_E4M3FNUZ", "|u1"),
    ElementType("float8_e5m2", "F8_E5M2", "|u1"),
    ElementType("float8_e5m2fnuz", "F8_E5M2FNUZ", "|u1"),
    ElementType("float8_e8m0fnu", "F8_E8M0", "|u1"),
    ElementType("int64", "I64", "<i8"),
    ElementType("int32", "I32", "<i4"),
    ElementType("int16", "I16", "<i2"),
    ElementType("int8", "I8", "|i1"),
    ElementType("uint64", "U64", "<u8"),
    ElementType("uint32", "U32", "<u4"),
    ElementType("uint16", "U16", "<u2"),
    ElementType("uint8", "U8", "|u1"),
    ElementType("bool", "BOOL", "|b1"),
    ElementType("complex64", "C64", "<c8"),
    ElementType("complex128", None, "<c16"),
)

BY_NAME = {t.name: t for t in _TYPES}
BY_CODE = {t.code: t for t in _TYPES if t.code is not None}

BY_STORAGE = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
    "UntypedStorage": "uint8",
}
"""What a pickled tensor's storage class says about its elements (torch/storage.py)."""

FLOATING = frozenset(
    t.name for t in _TYPES if t.name.startswith(("float", "bfloat")) and t.name != "float8_e8m0fnu"
)


def element_type(name: str) -> ElementType:
    """The element type of torch's ``name``. Raises :class:`CheckpointError` if unknown."""
    try:
        return BY_NAME[name]
    except KeyError:
        raise CheckpointError(f"element type {name!r} is not known") from None
