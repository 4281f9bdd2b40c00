"""Operands from one piece of memory, so that no size is fast or slow for where it happens to lie.

Each place in a call has memory of its own. Operands of all sizes of an axis begin at one address;
an A/A replicate's at another, else effects of the address would hide from the A/A floor. Cold
weights move on with each call: what it reads is met again only after other bytes, as in a model.
"""

from __future__ import annotations

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
REPLICATE_OFFSET = 9 * PAGE + 1024  # other pages and cache sets, at a multiple of 512 bytes
GROWTH = 2  # of memory; views keep what it grew from: together at most as large again
MAX_SHARE = 0.25  # of the device's memory, for a call's operands and result
PATTERN_ELEMENTS = (1 << 16) + 1  # over any tile; odd: rows of no power of two are all the same
VISIBLE_BELOW = 1.28  # a normal number below it lets a boolean mask show a key: nine of ten


@lru_cache(maxsize=64)
def pattern(dtype: torch.dtype, device: torch.device, seed: int) -> torch.Tensor:
    """Draw numbers of an operand: standard normal, and all values of int8."""
    # Zeros would run 13 to 15 % faster on GPUs than data does.
    draw = torch.Generator().manual_seed(seed)
    if dtype == torch.int8:
        numbers = torch.randint(-128, 128, (PATTERN_ELEMENTS,), generator=draw, dtype=dtype)
    elif dtype == torch.bool:
        numbers = torch.randn(PATTERN_ELEMENTS, generator=draw) < VISIBLE_BELOW
    else:
        numbers = torch.randn(PATTERN_ELEMENTS, generator=draw).to(dtype)
    return numbers.to(device)


class Arena:
    """Random numbers of one dtype on one device, lent as contiguous views."""

    def __init__(self, dtype: torch.dtype, device: torch.device, seed: int) -> None:
        self._dtype, self._device, self._seed = dtype, device, seed
        self._memory = torch.empty(0, dtype=dtype, device=device)
        self._next = 0

    def reserve(self, nbytes: int) -> None:
        """Hold at least ``nbytes`` and a replicate's offset. Earlier views stay valid."""
        elements = (nbytes + REPLICATE_OFFSET) // self._dtype.itemsize + 1
        current = self._memory.numel()
        if current < elements:
            # Repeated, since drawing would take longer than timing.
            repeats = -(-max(elements, GROWTH * current) // PATTERN_ELEMENTS)
            self._memory = pattern(self._dtype, self._device, self._seed).repeat(repeats)
            self._next = 0

    def view(self, operand: Operand, *, moves: bool, replicate: bool) -> torch.Tensor:
        """The view at the start, at the replicates' offset, or behind the last that moved."""
        start = REPLICATE_OFFSET if replicate else 0
        if moves:
            nbytes = -(-operand.nbytes // PAGE) * PAGE
            if self._next + nbytes > self._memory.nbytes:  # from the start again
                self._next = 0
            start = self._next
            self._next += nbytes
        first = start // self._dtype.itemsize + operand.offset
        return self._memory[first : first + prod(operand.shape)].view(operand.shape)


class Arenas:
    """Memory for operands on a device: an arena for each place in a call and each dtype."""

    def __init__(self, device: torch.device, memory_bytes: int) -> None:
        self._device, self._memory_bytes = device, memory_bytes
        self._arenas: dict[tuple[int, torch.dtype], Arena] = {}

    def reserve(self, point: Point, reuse_bytes: int) -> None:
        """Memory for the point's operands; cold weights with ``reuse_bytes`` between two uses.
        Raises :class:`MeasurementError` for a point of over a quarter of the device's memory."""
        operator = operators.get(point.operator)
        nbytes, limit = operator.bytes_moved(point), MAX_SHARE * self._memory_bytes
        if nbytes > limit:
            raise MeasurementError(
                f"{nbytes / 2**30:.1f} GiB are over the limit of {limit / 2**30:.0f}"
            )
        for place, operand in enumerate(operator.operands(point)):
            reuse = PAGE + reuse_bytes if moves(point, operand) else 0
            self._arena(place, operand).reserve(operand.nbytes + reuse)

    def bind(self, point: Point, call: Callable[..., Any], *, replicate: bool) -> BoundCall:
        """The point's call on views of this memory, which is reserved; cold weights' move on."""
        tensors = []
        for place, operand in enumerate(operators.get(point.operator).operands(point)):
            arena = self._arena(place, operand)
            tensors.append(arena.view(operand, moves=moves(point, operand), replicate=replicate))
        return partial(call, *tensors)

    def _arena(self, place: int, operand: Operand) -> Arena:
        key = place, getattr(torch, STORED_AS[operand.dtype])
        if key not in self._arenas:
            self._arenas[key] = Arena(key[1], self._device, seed=place + 1)
        return self._arenas[key]


def is_cold(point: Point) -> bool:
    return point.flags.get("cache") == "cold"


def weight_bytes(point: Point) -> int:
    operands = operators.get(point.operator).operands(point)
    return sum(operand.nbytes for operand in operands if operand.role == "weight")


def moves(point: Point, operand: Operand) -> bool:
    """Tell whether the operand is a cold weight, which lies elsewhere at each call."""
    return is_cold(point) and operand.role == "weight"
