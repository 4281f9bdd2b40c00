"""The names that people have for a compute dtype."""

from __future__ import annotations

from gacprof.core.errors import SuiteError
from gacprof.core.points import DTYPES

AUTO = "auto"
ALIASES = {
    "fp32": "float32",
    "f32": "float32",
    "fp16": "float16",
    "f16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "fp8": "float8_e4m3",
    "fp8_e4m3": "float8_e4m3",
    "e4m3": "float8_e4m3",
    "i8": "int8",
}


def dtype_named(name: str) -> str:
    """``fp16`` → ``float16``; the full names and ``auto`` stay. Raises :class:`SuiteError`."""
    plain = name.strip().lower().removeprefix("torch.")
    found = ALIASES.get(plain, plain)
    if found != AUTO and found not in DTYPES:
        raise SuiteError(
            f"unknown dtype '{name}': use {AUTO}, {', '.join(DTYPES)}, or {', '.join(ALIASES)}"
        )
    return found
