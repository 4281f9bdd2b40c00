"""Element types: sizes, how they are stored, what is computed in them, and other spellings."""

from __future__ import annotations

from dataclasses import dataclass

from gacprof.core.errors import require_one_of

DTYPES = ("float32", "tf32", "bfloat16", "float16", "float8_e4m3", "int8")
"""Compute types of a point. ``tf32`` is float32 storage with TF32 tensor cores."""


@dataclass(frozen=True)
class ElementType:
    """A type of numbers, by torch's name or a compute type's.

    ``itemsize`` is in bytes; ``code`` is safetensors', empty for what no file has. A compute type
    may be ``stored_as`` another one, and its products may have ``results`` of another one.
    """

    name: str
    itemsize: int
    code: str = ""
    stored_as: str = ""
    results: str = ""


ELEMENT_TYPES = (
    ElementType("float64", 8, "F64"),
    ElementType("float32", 4, "F32"),
    ElementType("tf32", 4, stored_as="float32"),
    ElementType("float16", 2, "F16"),
    ElementType("bfloat16", 2, "BF16"),
    ElementType("float8_e4m3", 1, stored_as="float8_e4m3fn", results="bfloat16"),
    ElementType("float8_e4m3fn", 1, "F8_E4M3"),
    ElementType("float8_e4m3fnuz", 1, "F8_E4M3FNUZ"),
    ElementType("float8_e5m2", 1, "F8_E5M2"),
    ElementType("float8_e5m2fnuz", 1, "F8_E5M2FNUZ"),
    ElementType("float8_e8m0fnu", 1, "F8_E8M0"),
    ElementType("float8", 1),
    ElementType("int64", 8, "I64"),
    ElementType("int32", 4, "I32"),
    ElementType("int16", 2, "I16"),
    ElementType("int8", 1, "I8", results="int32"),
    ElementType("uint64", 8, "U64"),
    ElementType("uint32", 4, "U32"),
    ElementType("uint16", 2, "U16"),
    ElementType("uint8", 1, "U8"),
    ElementType("bool", 1, "BOOL"),
    ElementType("complex_int8", 2),
    ElementType("complex32", 4),
    ElementType("complex_bfloat16", 4),
    ElementType("complex64", 8, "C64"),
    ElementType("complex128", 16),
)
"""safetensors' codes: its ``Dtype`` (safetensors/src/tensor.rs). Types without one stand in points
or in the names of kernels."""

BY_NAME = {element.name: element for element in ELEMENT_TYPES if element.code}
BY_CODE = {element.code: element for element in BY_NAME.values()}
ITEMSIZE = {element.name: element.itemsize for element in ELEMENT_TYPES}
STORED_AS = {element.name: element.stored_as or element.name for element in ELEMENT_TYPES}
RESULTS = {element.name: element.results or element.name for element in ELEMENT_TYPES}

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
    """Return the one of :data:`DTYPES` that a name stands for, else raise a ``ConfigError``."""
    name = dtype_name(dtype)
    require_one_of("dtype", name, DTYPES)
    return name
