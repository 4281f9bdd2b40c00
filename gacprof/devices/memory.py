"""Operands from one piece of memory, so that no size is fast or slow for where it happens to lie.

Each place in a call has memory of its own. Operands of all sizes of an axis begin at one address;
an A/A replicate's at another, else effects of the address would hide from the A/A floor. Cold
weights move on with each call: what it reads is met again only after other bytes, as in a model.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from math import prod
from typing import Any

import torch

from gacprof import operators
from gacprof.core.dtypes import STORED_AS
from gacprof.core.errors import MeasurementError
from gacprof.core.points import Point
from gacprof.operators.base import Operand

BoundCall = Callable[[], Any]  # a call with its operands

PAGE = 4096
REPLICATE_OFFSET = 9 * PAGE + 1024  # to other pages and cache sets, at a multiple of 512 bytes
GROWTH = 2  # factor of new memory; views keep the old: together at most as large again
MAX_SHARE = 0.25  # of the device's memory, for a call's operands and result
PATTERN_ELEMENTS = (1 << 16) + 1  # more than any tile; odd, so that rows of a power of two differ
VISIBLE_BELOW = 1.28  # a normal number below it lets a boolean mask show a key: nine of ten


@lru_cache(maxsize=64)
def pattern(dtype: torch.dtype, device: torch.device, seed: int) -> torch.Tensor:
    """Draw numbers of an operand: standard normal, and all values of int8."""
    # Zeros may run faster than data: a GPU at its limit of power lowers its clock less.
    draw = torch.Generator().manual_seed(seed)
    if dtype == torch.int8:
        numbers = torch.randint(-128, 128, (PATTERN_ELEMENTS,), generator=draw, dtype=dtype)
    elif dtype == torch.bool:
        numbers = torch.randn(PATTERN_ELEMENTS, generator=draw) < VISIBLE_BELOW
    else:
        numbers = torch.randn(PATTERN_ELEMENTS, generator=draw).to(dtype)
    return numbers.to(device)


class Arenas:
    """Random numbers on a device, for each place in a call and each dtype, lent as views."""

    def __init__(self, device: torch.device, memory_bytes: int) -> None:
        self._device, self._memory_bytes = device, memory_bytes
        self._memory: dict[tuple[int, torch.dtype], torch.Tensor] = {}
        self._next: dict[tuple[int, torch.dtype], int] = {}  # where the next cold weight begins

    def reserve(self, point: Point, reuse_bytes: int) -> None:
        """Reserve memory for the point's operands; cold weights with ``reuse_bytes`` between two
        uses. Earlier views stay valid. Raises :class:`MeasurementError` for a too large point."""
        operator = operators.get(point.operator)
        nbytes, limit = operator.bytes_moved(point), MAX_SHARE * self._memory_bytes
        if nbytes > limit:
            raise MeasurementError(
                f"{nbytes / 2**30:.1f} GiB are over the limit of {limit / 2**30:.0f}"
            )
        for place, operand in enumerate(operator.operands(point)):
            key = place, getattr(torch, STORED_AS[operand.dtype])
            reuse = PAGE + reuse_bytes if moves(point, operand) else 0
            elements = (operand.nbytes + reuse + REPLICATE_OFFSET) // key[1].itemsize + 1
            current = self._memory[key].numel() if key in self._memory else 0
            if current < elements:
                # Repeated, since drawing would take longer than timing.
                repeats = -(-max(elements, GROWTH * current) // PATTERN_ELEMENTS)
                self._memory[key] = pattern(key[1], self._device, place + 1).repeat(repeats)
                self._next[key] = 0

    def bind(self, point: Point, call: Callable[..., Any], *, replicate: bool) -> BoundCall:
        """Return the point's call on views of the reserved memory: at its start, at the replicates'
        offset, or, for cold weights, behind the last view."""
        tensors = []
        for place, operand in enumerate(operators.get(point.operator).operands(point)):
            key = place, getattr(torch, STORED_AS[operand.dtype])
            memory, start = self._memory[key], REPLICATE_OFFSET if replicate else 0
            if moves(point, operand):
                nbytes = -(-operand.nbytes // PAGE) * PAGE
                start = self._next[key]
                if start + nbytes > memory.nbytes:  # from the start again
                    start = 0
                self._next[key] = start + nbytes
            first = start // key[1].itemsize + operand.offset
            tensors.append(memory[first : first + prod(operand.shape)].view(operand.shape))
        return partial(call, *tensors)


def is_cold(point: Point) -> bool:
    return point.flags.get("cache") == "cold"


def weight_bytes(point: Point) -> int:
    operands = operators.get(point.operator).operands(point)
    return sum(operand.nbytes for operand in operands if operand.role == "weight")


def moves(point: Point, operand: Operand) -> bool:
    """Tell whether the operand is a cold weight, which lies elsewhere at each call."""
    return is_cold(point) and operand.role == "weight"
