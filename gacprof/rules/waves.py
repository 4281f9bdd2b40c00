"""Where a product's time steps along M and N: whole tiles, dealt to the SMs in waves.

An output of M × N is cut into tiles, and each SM works on one at a time: the time is that of the
waves of tiles, or that of reading the weights where this is longer. Of the large tiles that cuBLAS
has the best at a size is taken. What its heuristic really picks is not known, so that an end of a
wave is where a step is likely, never where a size is surely good: docs/rules.md says how often.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import lru_cache

from gacprof.core.points import BYTES_PER_ELEMENT, Point
from gacprof.rules.target import Target

TILES = (((128, 128), 0.85), ((128, 256), 1.0), ((256, 128), 1.0))
"""Large tiles, and their rate beside the best: an SM loads 1/64 element for each product of 128 ×
128, 3/256 of the larger. 0.85 was chosen with the tables of A100, H100, B200 and L40S; with 0.9 or
0.95 the precision is up to 0.07 lower (benchmarks/rules_by_evidence.py)."""
LEAST = 0.15
"""Steps smaller than it are no edges: neither would waves after the sixth be seen in them."""
TILE = 128
"""All edges lie at multiples of it."""

MOST_WAVES = 8
"""The end of the ninth wave costs less than an eighth."""
OLD = ("sm80", "sm86", "sm89")


def step(point: Point, axis: str, target: Target) -> int:
    """Dims of one number do the same work along M and N: so many likely edges are below them."""
    size, sheet = point.dim[axis], target.sheet
    if sheet.sms is None or point.operator not in ("linear", "quantised", "bmm"):
        return -(-size // TILE)
    rate, gb_s = sheet.values.get(point.dtype), sheet.values.get("gb_s")
    other = point.dim["N" if axis == "M" else "M"] * point.dim.get("batch", 1)
    bytes_each = BYTES_PER_ELEMENT[point.dtype]
    # N · K elements are read in the time of so many of an SM's products of K, per column of N
    per_column = bytes_each * rate * 1e3 / (2 * sheet.sms * gb_s) if rate and gb_s else 0.0
    return bisect_left(likely_edges(axis == "M", other, sheet.sms, per_column), size)


@lru_cache(maxsize=4096)
def likely_edges(over_m: bool, other: int, sms: int, per_column: float) -> tuple[int, ...]:
    """The sizes after which the time of the best tile rises by :data:`LEAST` or more, ascending.

    ``other`` is the size of the other of M and N; ``per_column`` what reading one column of the
    weights takes, in products of an SM. Beyond :data:`MOST_WAVES` waves of the largest tile there
    are none.
    """
    last = TILE * (2 * MOST_WAVES * sms // max(1, -(-other // 256)) + 1)
    found, before = [], 0.0
    for after in range(0, last, TILE):
        m, n = (after + 1, other) if over_m else (other, after + 1)
        now = max(_work(m, n, sms), n * per_column)
        if before and now > before * (1 + LEAST):
            found.append(after)
        before = max(_work(m + TILE - 1, n, sms), n * per_column) if over_m else max(
            _work(m, n + TILE - 1, sms), (n + TILE - 1) * per_column
        )  # fmt: skip
    return tuple(found)


def _work(m: int, n: int, sms: int) -> float:
    """Products of an SM until the last wave ends, by the best tile."""
    return min(
        -(-(-(-m // rows) * -(-n // columns)) // sms) * rows * columns / rate
        for (rows, columns), rate in TILES
    )
