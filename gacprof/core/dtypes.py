"""Element types by torch's names: their sizes, safetensors' codes, and other spellings."""

from __future__ import annotations

from dataclasses import dataclass

from gacprof.core.errors import require_one_of
from gacprof.core.points import DTYPES


@dataclass(frozen=True)
class ElementType:
    """``name`` is torch's, ``code`` safetensors', ``itemsize`` in bytes."""

    name: str
    code: str
    itemsize: int


ELEMENT_TYPES = (
    ElementType("float64", "F64", 8),
    ElementType("float32", "F32", 4),
    ElementType("float16", "F16", 2),
    ElementType("bfloat16", "BF16", 2),
    ElementType("float8_e4m3fn", "F8_E4M3", 1),
    ElementType("float8_e4m3fnuz", "F8_E4M3FNUZ", 1),
    ElementType("float8_e5m2", "F8_E5M2", 1),
    ElementType("float8_e5m2fnuz", "F8_E5M2FNUZ", 1),
    ElementType("float8_e8m0fnu", "F8_E8M0", 1),
    ElementType("int64", "I64", 8),
    ElementType("int32", "I32", 4),
    ElementType("int16", "I16", 2),
    ElementType("int8", "I8", 1),
    ElementType("uint64", "U64", 8),
    ElementType("uint32", "U32", 4),
    ElementType("uint16", "U16", 2),
    ElementType("uint8", "U8", 1),
    ElementType("bool", "BOOL", 1),
    ElementType("complex64", "C64", 8),
)
"""safetensors' codes: its ``Dtype`` (safetensors/src/tensor.rs)."""

BY_NAME = {element.name: element for element in ELEMENT_TYPES}
BY_CODE = {element.code: element for element in ELEMENT_TYPES}

FLOATING = frozenset(
    {"float64", "float32", "float16", "bfloat16"}
    | {name for name in BY_NAME if name.startswith(("float8_e4", "float8_e5"))}
)

ALIASES = {
    "fp64": "float64",
    "fp32": "float32",
    "f32": "float32",
    "fp16": "float16",
    "f16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "fp8": "float8_e4m3",
    "e4m3": "float8_e4m3",
    "float8_e4m3fn": "float8_e4m3",
    "i8": "int8",
}


def dtype_name(dtype: object) -> str:
    """``fp16``, ``torch.float16`` and ``float16`` as ``float16``; an unknown name is kept."""
    name = str(dtype).lower().removeprefix("torch.")
    return ALIASES.get(name, name)


def compute_dtype(dtype: object) -> str:
    """A dtype that a point may be computed in, by any of its names.

    Raises :class:`~gacprof.core.errors.ConfigError` for one that is not in
    :data:`gacprof.core.points.DTYPES`.
    """
    name = dtype_name(dtype)
    require_one_of("dtype", name, DTYPES)
    return name
