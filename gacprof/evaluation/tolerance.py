"""How far apart the logits of two models may be that compute the same function.

Zero padding changes nothing in real arithmetic but may change the order in which a matrix
product is summed, hence its rounding. What one operation may differ by is what
``torch.testing.assert_close`` allows it by default; a model rounds its residual stream a few
times a layer, and independent roundings add up like the square root of their number.
"""

from __future__ import annotations

import math
from types import MappingProxyType

import torch

ONE_OPERATION = MappingProxyType(
    {
        torch.float64: 1e-7,
        torch.float32: 1.3e-6,
        torch.bfloat16: 1.6e-2,
        torch.float16: 1e-3,
    }
)
"""Relative tolerance of one operation: the defaults of torch.testing.assert_close."""

ROUNDINGS_PER_LAYER = 8
"""Norm, q·k, softmax·v, o, add, norm, gate·up, down-and-add: what a decoder layer rounds."""


def tolerance_of(dtype: torch.dtype, layers: int) -> float:
    """The largest error of any logit that passes, as a share of the largest logit's size."""
    return ONE_OPERATION[dtype] * math.sqrt(ROUNDINGS_PER_LAYER * max(1, layers))
