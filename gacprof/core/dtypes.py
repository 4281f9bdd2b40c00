"""Element types: sizes, how they are stored, what is computed in them, and other spellings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gacprof.core.errors import require_one_of
from gacprof.core.files import row_of_word, shipped_table

DTYPES = ("float32", "tf32", "bfloat16", "float16", "float8_e4m3", "int8")
"""Compute types of a point. ``tf32`` is float32 storage with TF32 tensor cores."""


@dataclass(frozen=True)
class ElementType:
    """A type of numbers, by torch's name or a compute type's; ``aliases`` are other spellings.

    ``itemsize`` is in bytes; ``code`` is safetensors', empty for what no file has. A compute type
    may be ``stored_as`` another one, and its products may have ``results`` of another one.
    """

    name: str
    itemsize: int
    code: str = ""
    stored_as: str = ""
    results: str = ""
    aliases: Sequence[str] = ()


TABLE = Path(__file__).with_name("dtypes.toml")
ELEMENT_TYPES = [ElementType(**row) for row in shipped_table(TABLE, dict[str, list[Any]])["types"]]
ALIASES = row_of_word({element.name: element.aliases for element in ELEMENT_TYPES})
BY_NAME = {element.name: element for element in ELEMENT_TYPES if element.code}
BY_CODE = {element.code: element for element in BY_NAME.values()}
ITEMSIZE = {element.name: element.itemsize for element in ELEMENT_TYPES}
STORED_AS = {element.name: element.stored_as or element.name for element in ELEMENT_TYPES}
RESULTS = {element.name: element.results or element.name for element in ELEMENT_TYPES}

MULTIPLIED = frozenset({"float64", "float32", "float16", "bfloat16"})
"""Types of weights that are what they say, without scales."""
FLOATING = MULTIPLIED | {name for name in BY_NAME if name.startswith(("float8_e4", "float8_e5"))}


def dtype_name(dtype: object) -> str:
    """Return a dtype's plain name, ``float16`` for ``fp16`` and ``torch.float16``; an unknown name
    as it is."""
    name = str(dtype).lower().removeprefix("torch.").removeprefix("c10::")
    return ALIASES.get(name, name)


def compute_dtype(dtype: object) -> str:
    """Return the one of :data:`DTYPES` that a name stands for, else raise a ``ConfigError``."""
    name = dtype_name(dtype)
    require_one_of("dtype", name, DTYPES)
    return name
