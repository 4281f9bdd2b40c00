"""How far two models that compute one function may differ by rounding: the same for all.

A plan says it beforehand, realigning says it of what it wrote, and verifying holds the logits to
it. Roundings are independent, so their squares add up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import sqrt
from types import MappingProxyType

ONE_OPERATION: Mapping[str, float] = MappingProxyType(
    {"float64": 1e-7, "float32": 1.3e-6, "bfloat16": 1.6e-2, "float16": 1e-3}
)
"""Relative tolerance of one operation computed in a dtype: torch.testing.assert_close's."""

ROUNDINGS_PER_LAYER = 8
"""Norm, q·k, softmax·v, o, add, norm, gate·up, down-and-add: what a decoder layer rounds."""

ONE_ROUNDING: Mapping[str, float] = MappingProxyType(
    {"float64": 2**-53, "float32": 2**-24, "bfloat16": 2**-8, "float16": 2**-11}
)
"""The largest relative error of a value that is rounded to a dtype (half its epsilon)."""


def of_computing(dtype: str, layers: int) -> float:
    """What another order of summing may move a logit by, as a share of the largest logit."""
    return ONE_OPERATION[dtype] * sqrt(ROUNDINGS_PER_LAYER * max(1, layers))


def of_merging(dtypes: Iterable[str]) -> float:
    """What rounding the product of merged factors may move a logit by: one rounding to its stored
    dtype for every weight that was merged."""
    return sqrt(sum(ONE_ROUNDING.get(dtype, ONE_ROUNDING["bfloat16"]) ** 2 for dtype in dtypes))
