"""Random operands: numbers drawn once for each dtype and repeated, since drawing takes longer than
timing."""

from __future__ import annotations

from functools import lru_cache
from math import prod

import torch

from gacprof.core.dtypes import STORED_AS
from gacprof.core.points import Point
from gacprof.operators.base import Operand

PATTERN_ELEMENTS = (1 << 16) + 1
"""More than any kernel's tile, and odd, so that rows of no power of two are all the same."""
VISIBLE_BELOW = 1.28
"""A standard-normal number below it lets a boolean mask show a key: nine of ten."""


def torch_dtype(dtype: str) -> torch.dtype:
    """The storage type of a compute dtype (``tf32`` is stored as float32)."""
    stored: torch.dtype = getattr(torch, STORED_AS[dtype])
    return stored


@lru_cache(maxsize=64)
def pattern(dtype: torch.dtype, device: torch.device, seed: int) -> torch.Tensor:
    """Numbers of an operand: standard normal, since zeros run 13 to 15 % faster on GPUs than data
    does; all values of int8, nine true of ten of bool."""
    draw = torch.Generator().manual_seed(seed)
    if dtype == torch.int8:
        numbers = torch.randint(-128, 128, (PATTERN_ELEMENTS,), generator=draw, dtype=dtype)
    elif dtype == torch.bool:
        numbers = torch.randn(PATTERN_ELEMENTS, generator=draw) < VISIBLE_BELOW
    else:
        numbers = torch.randn(PATTERN_ELEMENTS, generator=draw).to(dtype)
    return numbers.to(device)


def random_numbers(
    elements: int, dtype: torch.dtype, device: torch.device, seed: int
) -> torch.Tensor:
    """New memory of so many elements, filled with the pattern over and over."""
    numbers = pattern(dtype, device, seed)
    repeats = -(-elements // PATTERN_ELEMENTS)
    memory = torch.empty(repeats, PATTERN_ELEMENTS, dtype=dtype, device=device)
    return memory.copy_(numbers).view(-1)[:elements]


def random_tensor(operand: Operand, device: torch.device, seed: int) -> torch.Tensor:
    """An operand in memory of its own."""
    size = prod(operand.shape)
    memory = random_numbers(size + operand.offset, torch_dtype(operand.dtype), device, seed)
    return memory[operand.offset :].view(operand.shape)


def set_precision(point: Point) -> None:
    """Let float32 products use TF32 tensor cores if the point's dtype is ``tf32``, else not.

    Process-wide, by the older of torch's two switches: code that reads it raises where only the
    newer ones, ``fp32_precision``, were set.
    """
    torch.backends.cuda.matmul.allow_tf32 = point.dtype == "tf32"
