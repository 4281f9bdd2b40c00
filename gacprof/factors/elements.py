"""Stored elements to float64 and back. numpy has no bfloat16: it is handled by its bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gacprof.checkpoint.dtypes import element_type
from gacprof.core.errors import CheckpointError

COMPUTABLE = ("float64", "float32", "float16", "bfloat16")
"""Types whose values we combine; others can be copied and padded only."""


def widen(stored: NDArray[Any], dtype: str) -> NDArray[np.float64]:
    """Values of elements stored as ``dtype`` (torch's name), exactly, in float64."""
    _check(dtype)
    if dtype == "bfloat16":
        bits = stored.view(np.uint16).astype(np.uint32) << np.uint32(16)
        return bits.view(np.float32).astype(np.float64)
    return stored.astype(np.float64)


def narrow(values: NDArray[np.float64], dtype: str) -> NDArray[Any]:
    """Values rounded to ``dtype``, to nearest, ties to even, in the type's carrier.

    bfloat16 is reached through float32 (one extra rounding, at most 2⁻¹⁶ of an ulp more).
    Raises :class:`CheckpointError` where a finite value overflows the type.
    """
    _check(dtype)
    with np.errstate(over="ignore"):
        narrowed = _to_bfloat16(values) if dtype == "bfloat16" else values.astype(_carrier(dtype))
    finite = np.isfinite(widen(narrowed, dtype))
    if not finite.all() and np.isfinite(values[~finite]).any():
        raise CheckpointError(f"a computed factor does not fit {dtype}: it overflows")
    return narrowed


def all_finite(stored: NDArray[Any], dtype: str) -> bool:
    """Whether none of the elements is NaN or infinite; true for types that we do not compute."""
    if dtype == "bfloat16":
        exponent = np.uint16(0x7F80)
        return not bool(((stored.view(np.uint16) & exponent) == exponent).any())
    return dtype not in COMPUTABLE or bool(np.isfinite(stored).all())


def _to_bfloat16(values: NDArray[np.float64]) -> NDArray[np.uint16]:
    single = values.astype(np.float32)
    bits = np.ascontiguousarray(single).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet_nan = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(single), quiet_nan, rounded).astype(np.uint16)


def _carrier(dtype: str) -> np.dtype[Any]:
    return element_type(dtype).numpy


def _check(dtype: str) -> None:
    if dtype not in COMPUTABLE:
        raise CheckpointError(
            f"values stored as {dtype} cannot be combined; only padding and copying keep them exact"
        )
