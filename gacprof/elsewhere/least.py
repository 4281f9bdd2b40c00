"""The least time that a part of a step takes by a GPU's data sheet: FLOPs at the peak rate, or the
bytes that must be read at the memory's bandwidth, whichever is longer.

Weights and the keys and values of a context are read once from memory: a whole step's do not stay
in the cache. Activations are left out, as they may.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gacprof.devices.datasheet import Sheet
from gacprof.elsewhere.levels import OUR_NAMES

if TYPE_CHECKING:
    from gacprof.elsewhere.needs import Need

BITS = {
    "bfloat16": 16.0, "fp8": 8.0, "fp8_block": 8.0, "sq": 8.0, "int8_wo": 8.0, "nvfp4": 4.5,
    "w4a16_mxfp4": 4.25, "int4_wo": 4.0,
}  # fmt: skip
"""Bits that a weight takes at least, by the tables' data types (demands/quantisation.py)."""
RATES = OUR_NAMES | {
    "fp8_block": "float8_e4m3", "int8_wo": "bfloat16", "int4_wo": "bfloat16",
    "w4a16_mxfp4": "bfloat16",
}  # fmt: skip
"""Whose peak rate on a data sheet bounds their arithmetic; of others no rate is known."""


def product_us(sheet: Sheet, dtype: str, m: int, n: int, k: int) -> float:
    """At least so many µs of y[m, n] = x[m, k] · Wᵀ in one of the tables' data types."""
    return _roof(sheet, dtype, 2.0 * m * n * k, n * k * BITS.get(dtype, 0.0) / 8)


def least_us(sheet: Sheet, need: Need, tokens: int) -> float:
    """At least so many µs of one repetition of attention or experts; 0 where no bound is known."""
    at = need.shape
    if need.kind == "experts":
        one = 3 * at["hidden"] * at["width"]  # gate, up and down
        read = _experts_read(at["experts"], at["topk"], tokens)
        moved = read * one * BITS.get(need.dtype, 0.0) / 8
        return _roof(sheet, need.dtype, 2.0 * one * at["topk"] * tokens, moved)
    if need.kind == "attention" and tokens > 1:  # causal: half of all pairs, twice
        flops = 2.0 * at["heads"] * at["head_dim"] * tokens**2
        return _roof(sheet, "bfloat16", flops, 0.0)
    return 0.0


def _experts_read(experts: int, topk: int, tokens: int) -> float:
    """How many experts' weights a step reads: those of one token, true of any routing; by even
    routing once all may be needed."""
    if tokens * topk < experts:
        return topk
    return experts * (1 - (1 - topk / experts) ** tokens)


def _roof(sheet: Sheet, dtype: str, flops: float, moved: float) -> float:
    rate, gb_s = sheet.rates.get(RATES.get(dtype, "")), sheet.values.get("gb_s")
    return max(flops / rate / 1e6 if rate else 0.0, moved / gb_s / 1e3 if gb_s else 0.0)
