"""Residue classes in words (``K % 16 = 0``; ``K % 2 = 0, K % 8 ≠ 0``), and steps of a sweep."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from math import gcd


def label(axis: str, modulus: int, remainders: Collection[int]) -> str:
    """The shortest description of the class: one residue, all but one, a difference, or a list."""
    wanted = {r % modulus for r in remainders}
    if len(wanted) == modulus:
        return f"all {axis}"
    divisors = [m for m in range(2, modulus + 1) if modulus % m == 0]
    single = {(m, r): set(range(r, modulus, m)) for m in divisors for r in range(m)}
    for (m, r), members in single.items():
        if wanted == members:
            return f"{axis} % {m} = {r}"
    for (m, r), members in single.items():
        if wanted == set(range(modulus)) - members:
            return f"{axis} % {m} ≠ {r}"
    for m in divisors:
        for n in (n for n in divisors if n > m and n % m == 0):
            if wanted == set(range(0, modulus, m)) - set(range(0, modulus, n)):
                return f"{axis} % {m} = 0, {axis} % {n} ≠ 0"
    listed = ", ".join(str(r) for r in sorted(wanted))
    return f"{axis} % {modulus} in {listed}"


def finest_step(d: Sequence[int]) -> int:
    """The largest step that visits all these dims: 1 for a dense sweep, 64 for a coarse one."""
    return gcd(*(b - a for a, b in pairwise(d))) or 1
