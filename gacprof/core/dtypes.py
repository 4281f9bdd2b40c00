"""Element types: their names in torch, files and maps; and how far rounding in them may differ.

numpy has no bfloat16 and no float8, so a tensor of those is *carried* as unsigned integers
of the same width: slicing, padding with zeros and writing keep every bit.

How far two models of one function may differ by rounding is the same for all: a plan says it
beforehand, realigning says it of what it wrote, and verifying holds the logits to
it. Roundings are independent, so their squares add up.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Any

from gacprof.core.errors import CheckpointError, PlanError, SuiteError
from gacprof.core.points import DTYPES

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class ElementType:
    """``name`` is torch's, ``code`` is safetensors', ``carrier`` numpy's of the same width;
    ``storage`` is the class of a pickled tensor's storage (torch/storage.py)."""

    name: str
    code: str | None
    carrier: str
    storage: str = ""

    @property
    def itemsize(self) -> int:
        return int(self.carrier[2:])

    @property
    def numpy(self) -> np.dtype[Any]:
        import numpy as np

        return np.dtype(self.carrier)


_TYPES = (
    ElementType("float64", "F64", "<f8", "DoubleStorage"),
    ElementType("float32", "F32", "<f4", "FloatStorage"),
    ElementType("float16", "F16", "<f2", "HalfStorage"),
    ElementType("bfloat16", "BF16", "<u2", "BFloat16Storage"),
    ElementType("float8_e4m3fn", "F8_E4M3", "|u1"),
    ElementType("float8_e4m3fnuz", "F8_E4M3FNUZ", "|u1"),
    ElementType("float8_e5m2", "F8_E5M2", "|u1"),
    ElementType("float8_e5m2fnuz", "F8_E5M2FNUZ", "|u1"),
    ElementType("float8_e8m0fnu", "F8_E8M0", "|u1"),
    ElementType("int64", "I64", "<i8", "LongStorage"),
    ElementType("int32", "I32", "<i4", "IntStorage"),
    ElementType("int16", "I16", "<i2", "ShortStorage"),
    ElementType("int8", "I8", "|i1", "CharStorage"),
    ElementType("uint64", "U64", "<u8"),
    ElementType("uint32", "U32", "<u4"),
    ElementType("uint16", "U16", "<u2"),
    ElementType("uint8", "U8", "|u1", "ByteStorage"),
    ElementType("bool", "BOOL", "|b1", "BoolStorage"),
    ElementType("complex64", "C64", "<c8", "ComplexFloatStorage"),
    ElementType("complex128", None, "<c16", "ComplexDoubleStorage"),
)

BY_NAME = {t.name: t for t in _TYPES}
BY_CODE = {t.code: t for t in _TYPES if t.code is not None}

BY_STORAGE = {t.storage: t.name for t in _TYPES if t.storage} | {"UntypedStorage": "uint8"}

FLOATING = frozenset(
    t.name for t in _TYPES if t.name.startswith(("float", "bfloat")) and t.name != "float8_e8m0fnu"
)

AUTO = "auto"
ALIASES = {
    "fp64": "float64",
    **dict.fromkeys(("fp32", "f32"), "float32"),
    **dict.fromkeys(("fp16", "f16", "half"), "float16"),
    "bf16": "bfloat16",
    **dict.fromkeys(("fp8", "fp8_e4m3", "e4m3", "float8_e4m3fn"), "float8_e4m3"),
    "i8": "int8",
}


def element_type(name: str) -> ElementType:
    """The element type of torch's ``name``. Raises :class:`CheckpointError` if unknown."""
    try:
        return BY_NAME[name]
    except KeyError:
        raise CheckpointError(f"element type {name!r} is not known") from None


def full_name(name: object) -> str:
    """``fp16``, ``torch.float16`` and ``np.float16`` → ``float16``; what is not known keeps its
    name."""
    plain = str(getattr(name, "__name__", name)).strip().lower().removeprefix("torch.")
    return ALIASES.get(plain, plain)


def dtype_named(name: str) -> str:
    """The compute dtype of a point, or ``auto``, by any name. Raises :class:`SuiteError`."""
    found = full_name(name)
    if found != AUTO and found not in DTYPES:
        short = [alias for alias, full in ALIASES.items() if full in DTYPES]
        raise SuiteError(
            f"unknown dtype '{name}': use {AUTO}, {', '.join(DTYPES)}, or {', '.join(short)}"
        )
    return found


def choose_dtype(
    asked: str | None, stored: str, held: Collection[str], map_name: str
) -> tuple[str, str]:
    """The dtype to predict in and, where it is not the ``stored`` one, a note.

    ``held`` are the dtypes of the map's curves. Raises :class:`PlanError` where it lacks ``asked``.
    """
    held = sorted(held)
    if asked is not None:
        if held and asked not in held:
            raise PlanError(f"the map '{map_name}' holds no {asked}; it holds {', '.join(held)}")
        return asked, ""
    if stored in held or not held:  # lookups in an empty map fail and say what to sweep
        return stored, ""
    which = "the only dtype" if len(held) == 1 else "the first dtype"
    how = f"; 'gacprof sweep --for CHECKPOINT --dtype {stored}' measures those"
    return held[0], (
        f"stored as {stored}; predicted in {held[0]}, {which} of this map: what the weights cost "
        f"when computed in {held[0]}. Other kernels serve {stored}, with other cliffs and times"
        + (how if stored in DTYPES else "")
    )


ONE_OPERATION = {"float64": 1e-7, "float32": 1.3e-6, "bfloat16": 1.6e-2, "float16": 1e-3}
"""Relative tolerance of one operation computed in a dtype: torch.testing.assert_close's."""

ROUNDINGS_PER_LAYER = 8
"""Norm, q·k, softmax·v, o, add, norm, gate·up, down-and-add: what a decoder layer rounds."""

ONE_ROUNDING = {"float64": 2**-53, "float32": 2**-24, "bfloat16": 2**-8, "float16": 2**-11}
"""The largest relative error of a value that is rounded to a dtype (half its epsilon)."""


def of_computing(dtype: str, layers: int) -> float:
    """What another order of summing may move a logit by, as a share of the largest logit."""
    return ONE_OPERATION[dtype] * sqrt(ROUNDINGS_PER_LAYER * max(1, layers))


def of_merging(dtypes: Iterable[str]) -> float:
    """What rounding the product of merged factors may move a logit by: one rounding to its stored
    dtype for every weight that was merged."""
    return sqrt(sum(ONE_ROUNDING.get(dtype, ONE_ROUNDING["bfloat16"]) ** 2 for dtype in dtypes))
