"""Doubles as exact integers of a common unit, so that sums and comparisons are exact."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

Whole = NDArray[Any]
"""int64, or Python integers where 64 bits are too few."""

BITS = 61
"""Σ|integer| stays below 2**BITS, so that int64 sums and differences cannot overflow."""

BIG_ITEMS, BIG_BITS = 4096, 900
"""Up to so many numbers of so many bits are kept as Python integers where int64 is too short."""


@dataclass(frozen=True)
class Scaled:
    """Whole numbers of ``unit``, their common divisor; ``exact`` unless rounded to fit."""

    whole: Whole
    unit: Fraction
    exact: bool = True

    @property
    def step(self) -> float:
        """The least by which two sums of them can differ if they do; 0 if that is not known."""
        return math.nextafter(float(self.unit), 0.0) if self.exact else 0.0


def scaled(
    numbers: NDArray[Any], base: NDArray[Any], *, up: bool, most_bits: int = BITS, big: bool = False
) -> Scaled:
    """numbers − base as integers whose sums take ``most_bits``, rounded up or down if need be;
    if ``big``, rather as Python integers, unless there are too many."""
    ratios = [one.as_integer_ratio() for one in (*numbers.tolist(), *base.tolist())]
    finest = max((below for _, below in ratios), default=1)  # of powers of two
    whole = [above * (finest // below) for above, below in ratios]
    half = len(numbers)
    exact = [a - b for a, b in zip(whole[:half], whole[half:], strict=True)]
    divisor = math.gcd(*exact) or 1
    exact = [one // divisor for one in exact]
    unit = Fraction(divisor, finest)
    bits = sum(map(abs, exact)).bit_length()
    if bits <= most_bits:
        return Scaled(np.array(exact, dtype=np.int64), unit)
    if big and half <= BIG_ITEMS and bits <= BIG_BITS:
        return Scaled(np.array(exact, dtype=object), unit)
    drop = bits - most_bits + 1
    rounded = [-(-one >> drop) if up else one >> drop for one in exact]
    return Scaled(np.array(rounded, dtype=np.int64), unit * 2**drop, exact=False)


def exact_sum(numbers: NDArray[Any]) -> Fraction:
    """Σ without rounding: what is left of the rounded sum is summed again until nothing is."""
    rest = numbers.tolist()
    total = Fraction(0)
    while part := math.fsum(rest):
        total += Fraction(part)
        rest.append(-part)
    return total


def room_for(limit: float, taken: Fraction, unit: Fraction) -> int:
    """How many units fit beside ``taken`` if the rounded sum may reach ``limit``.

    A sum rounds to ``limit`` or below if it is not beyond the middle between ``limit`` and the
    next double; the middle itself rounds to the even one of the two.
    """
    after = math.nextafter(limit, math.inf)
    units = ((Fraction(limit) + Fraction(after)) / 2 - taken) / unit
    even = int(math.ldexp(math.frexp(limit)[0], 53)) % 2 == 0
    return math.floor(units) if even else math.ceil(units) - 1
