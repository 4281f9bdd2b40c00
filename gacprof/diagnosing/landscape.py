"""What one dim could become: its sizes, their predicted latency and penalty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gacprof.checkpoint.inventory import Dim
from gacprof.cliffmap import detect
from gacprof.diagnosing.predict import Predictor
from gacprof.points import MAX_DIM


@dataclass(frozen=True)
class Landscape:
    """What one dim could become: sizes, and their predicted latency and penalty.

    ``penalty[i]`` is latency(i) / min over sizes ≥ i − 1, on the sum over all GEMMs that the
    dim feeds: a size that suits one product and not the other is judged by what both cost.
    It is None for the largest size known, which nothing larger vouches for, unless a larger
    one would be of no use. Sizes larger than those offered count as well: a size that can grow
    no further is not safe for that.
    """

    sizes: tuple[int, ...]
    latency_us: tuple[float, ...]
    penalty: tuple[float | None, ...]
    tolerance: float
    scaled: bool
    missing: str = ""

    def at(self, size: int) -> tuple[float, float | None] | None:
        """(latency in µs, penalty) at ``size``, or None where the latency is not known."""
        if size not in self.sizes:
            return None
        i = self.sizes.index(size)
        return self.latency_us[i], self.penalty[i]

    @property
    def safe(self) -> tuple[int, ...]:
        pairs = zip(self.sizes, self.penalty, strict=True)
        return tuple(s for s, penalty in pairs if penalty is not None and penalty <= self.tolerance)

    def best_padding(self, size: int) -> tuple[int, float] | None:
        """The fastest size ≥ ``size`` and its latency; the smallest within the tolerance of it."""
        above = [(s, t) for s, t in zip(self.sizes, self.latency_us, strict=True) if s >= size]
        if not above:
            return None
        fastest = min(latency for _, latency in above)
        return next((s, t) for s, t in above if t <= fastest * (1 + self.tolerance))


STEP = 8
"""Sizes looked at besides the measured ones are multiples of this (16 bytes of fp16)."""


def around(dims: Sequence[Dim], window: float) -> tuple[int, int]:
    """The sizes within ±``window`` (a fraction) of any of these dims, one step at least."""
    low = min(min(round(d.size * (1 - window)), d.size - STEP) for d in dims)
    high = max(max(round(d.size * (1 + window)), d.size + STEP) for d in dims)
    return max(1, low), high


def landscape(predictor: Predictor, dim: Dim, low: int, high: int) -> Landscape:
    """What the map knows of the dim at sizes from ``low`` to ``high``, and as it is.

    Sizes measured beyond ``high`` or :attr:`Dim.most` still count for the envelope, so that
    the last sizes are not called safe for want of a neighbour. ``dim.dense_size`` has no say:
    a size is no better served for having been larger once.
    """
    high = min(high, dim.most or MAX_DIM)
    wanted = {dim.size, *range(-(-low // STEP) * STEP, high + 1, STEP)}
    wanted |= set(predictor.measured_sizes(dim, low, MAX_DIM))
    known: list[tuple[int, float]] = []
    scaled, missing = False, ""
    for size in sorted(wanted):
        estimate = predictor.dim(dim, size)
        if estimate.latency_us is None:
            missing = missing or estimate.missing
            continue
        known.append((size, estimate.latency_us))
        scaled = scaled or estimate.scaled
    lowest = detect.envelope([latency for _, latency in known])
    largest = known[-1][0] if known else 0
    offered = [
        (s, t, t / e - 1 if s < largest or s == dim.most else None)
        for (s, t), e in zip(known, lowest, strict=True)
        if s <= high
    ]
    return Landscape(
        tuple(size for size, _, _ in offered),
        tuple(latency for _, latency, _ in offered),
        tuple(penalty for _, _, penalty in offered),
        predictor.tolerance_of(dim),
        scaled,
        missing,
    )
