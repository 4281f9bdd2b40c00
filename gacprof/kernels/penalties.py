"""What a misaligned product costs beside the padded one on a GPU that is not at hand.

It is what groups of people, we among them, measured there (``penalties.toml``), counted by groups
and not by sizes: an interval that holds a further group's number in four of five cases. Where fewer
than three measured, nothing is said. A misaligned kernel's rate depends less on the shape than its
ratio to the padded product; it serves where that one's time is known (extra ``third-party``).
"""

from collections.abc import Iterable, Sequence
from functools import cache
from math import exp, floor, gcd, hypot, log, sqrt
from pathlib import Path
from statistics import fmean, geometric_mean, stdev
from typing import Any, Literal

from gacprof.core.dtypes import ITEMSIZE
from gacprof.core.files import shipped_table
from gacprof.core.sizes import Estimate, Use
from gacprof.hardware.datasheet import gpu_facts
from gacprof.kernels import third_party

TABLE = Path(__file__).with_name("penalties.toml")
MEASURED = shipped_table(TABLE, dict[str, Any])
MIN_ROWS: int = MEASURED["rows"]
MIN_SIDE: int = MEASURED["side"]
MIN_GROUPS: int = MEASURED["groups"]
CUDA: str = MEASURED["cuda"]
ONE_ROW: float = MEASURED["one_row"]
TILE: int = MEASURED["tile"]
PADDED_TO = 8
STUDENT_80 = (3.078, 1.886, 1.638, 1.533, 1.476, 1.440)
"""Quantiles of Student's t by degrees of freedom, from 1: 80 % lie within."""
MIN_HALF_WIDTH = 1.5
"""No interval reaches less far than by this factor: few groups may agree by chance."""

Parity = Literal["odd", "even", "aligned"]
Quantity = Literal["ratio", "tflops"]
Measurement = tuple[str, float]
"""The GPU that a group measured, and the geometric mean of its runs."""


def parity_of(n: int, k: int) -> Parity:
    """Return ``odd`` where a side is, ``even`` where one is no multiple of 8, else ``aligned``."""
    shared = gcd(n, k, PADDED_TO)
    if shared == PADDED_TO:
        return "aligned"
    return "odd" if shared == 1 else "even"


def estimate(gpu: str, dtype: str, rows: int, n: int, k: int) -> Estimate | None:
    """Return how many times as long as padded to multiples of 8 a product takes.

    None for an aligned product, for types other than 16-bit ones, for fewer rows or shorter sides
    than were measured, and for GPUs that fewer than three groups measured.
    """
    parity = parity_of(n, k)
    is_measured = ITEMSIZE[dtype] == 2 and rows >= MIN_ROWS and min(n, k) >= MIN_SIDE
    if parity == "aligned" or not is_measured:
        return None
    rates, ratios = measured(gpu, parity, "tflops"), measured(gpu, parity, "ratio")
    # A kernel reaches its rate where its tiles keep half of the GPU busy.
    tiles = -(-rows // TILE) * -(-n // TILE)
    if len(rates) >= MIN_GROUPS and 2 * tiles >= (gpu_facts(gpu).sms or 0):
        padded_us = third_party.aligned_us(gpu, rows, n, k)
        if padded_us is not None:
            low, high = interval_of([rate for _, rate in rates])
            # The errors of the rate and of the padded product's time are independent.
            middle = log(2 * rows * n * k / 1e6 / padded_us / sqrt(low * high))
            half = hypot(log(high / low) / 2, log(third_party.ERROR))
            return rounded(exp(middle - half), exp(middle + half), rates, "rate")
    if len(ratios) >= MIN_GROUPS:
        return rounded(*interval_of([ratio for _, ratio in ratios]), ratios, "ratio")
    return None


def worst_estimate(gpu: str, uses: Iterable[Use], size: int) -> Estimate | None:
    """Return the largest estimate of the products that a dim feeds at a size, if there is any."""
    costs = []
    for use in uses:
        lengths = use.at(size)
        if lengths is not None:
            costs.append(estimate(gpu, use.dtype, use.tokens, *lengths))
    return max(filter(None, costs), key=lambda cost: cost.high, default=None)


@cache
def measured(gpu: str, parity: Parity, quantity: Quantity) -> Sequence[Measurement]:
    """Return what each group measured on GPUs of equal architecture and peak rate."""
    values = []
    for row in MEASURED[parity]:
        if peak_of(row["gpu"]) == peak_of(gpu) and quantity in row:
            values.append((row["gpu"], geometric_mean(row[quantity])))
    return values


def peak_of(gpu: str) -> tuple[str, float | None]:
    """Return the architecture and the 16-bit rate, which decide what misalignment costs."""
    facts = gpu_facts(gpu)
    return facts.arch, facts.tflops.get("bfloat16")


def interval_of(values: Sequence[float]) -> tuple[float, float]:
    """Return the interval that a further group's value falls into in four of five cases."""
    logs = [log(value) for value in values]
    quantile = STUDENT_80[min(len(logs) - 1, len(STUDENT_80)) - 1]
    # The prediction interval of a log-normal quantity.
    half = quantile * stdev(logs) * sqrt(1 + 1 / len(logs))
    half = max(half, log(MIN_HALF_WIDTH))
    return exp(fmean(logs) - half), exp(fmean(logs) + half)


def rounded(
    low: float, high: float, by: Sequence[Measurement], basis: Literal["ratio", "rate"]
) -> Estimate:
    """Return an estimate in two digits; padding is not taken to slow a product."""
    least = max(1.0, floor(10 * low) / 10)  # down: by it one decides that padding pays
    most = max(1.0, float(f"{high:.2g}"))
    return Estimate(least, most, len(by), tuple(dict.fromkeys(gpu for gpu, _ in by)), basis)
