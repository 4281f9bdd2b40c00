"""What one dim could become: its sizes, their predicted latency, and the judge's word on each."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import inf, isfinite

from gacprof.checkpoint.inventory import Dim
from gacprof.cliffmap.judge import Judged, Verdict, judge
from gacprof.core.points import MAX_DIM
from gacprof.diagnosing.predict import Predictor


@dataclass(frozen=True)
class Landscape:
    """What one dim could become, judged on the sum over all GEMMs that the dim feeds: a size
    that suits one product and not the other is judged by what both cost.

    ``penalty_high`` is None where nothing larger settles a size: it is not safe then. Sizes larger
    than those offered count as well: a size that can grow no further is not safe for that.
    """

    sizes: tuple[int, ...]
    latency_us: tuple[float, ...]
    penalty: tuple[float, ...]
    penalty_low: tuple[float, ...]
    penalty_high: tuple[float | None, ...]
    verdict: tuple[Verdict, ...]
    tolerance: float
    scaled: bool
    missing: str = ""

    def place(self, size: int) -> int | None:
        """Where the size stands in the columns; None where the map cannot tell it."""
        return self.sizes.index(size) if size in self.sizes else None

    @property
    def safe(self) -> tuple[int, ...]:
        return tuple(s for s, v in zip(self.sizes, self.verdict, strict=True) if v == "safe")

    def offers(self, size: int, now: int) -> bool:
        """Whether a plan may choose the size: a safe one; one that seems safe, though noise leaves
        it undecided; and the size as it is ``now`` while nothing says that it is misaligned."""
        place = self.place(size)
        if place is None or self.verdict[place] == "misaligned":
            return False
        if self.verdict[place] == "safe" or self.penalty_high[place] is None:
            return self.verdict[place] == "safe"
        return size == now or self.penalty[place] <= self.tolerance

    def best_padding(self, size: int) -> tuple[int, float] | None:
        """The fastest size ≥ ``size`` and its latency; the smallest within the tolerance of it."""
        above = [(s, t) for s, t in zip(self.sizes, self.latency_us, strict=True) if s >= size]
        if not above:
            return None
        fastest = min(latency for _, latency in above)
        return next((s, t) for s, t in above if t <= fastest * (1 + self.tolerance))


LEAST_REACH = 32
"""How far sizes are looked for each way at least: a small dim has another tile beside it too (the
next multiple of AMX's 32 of K, say)."""


def around(dims: Sequence[Dim], window: float) -> tuple[int, int]:
    """The sizes within ±``window`` (a fraction) of any of these dims."""
    reach = {dim.size: max(LEAST_REACH, round(dim.size * window)) for dim in dims}
    low = min(size - far for size, far in reach.items())
    high = max(size + far for size, far in reach.items())
    return max(1, low), high


def landscape(
    predictor: Predictor, dim: Dim, low: int, high: int, also: Collection[int] = ()
) -> Landscape:
    """What the map knows of the dim at sizes from ``low`` to ``high``, and as it is.

    Sizes are those that were measured (:meth:`Predictor.offered_sizes`). Ones beyond ``high``
    or :attr:`Dim.most` still count for the penalty, so that the last sizes are not called safe
    for want of a neighbour. ``dim.dense_size`` has no say: a size is no better served for having
    been larger once.
    """
    high = min(high, dim.most or MAX_DIM)
    known: list[tuple[int, float]] = []
    errors: list[float | None] = []
    scaled, missing = False, ""
    for size in sorted({dim.size, *predictor.offered_sizes(dim, low, MAX_DIM), *also}):
        estimate = predictor.dim(dim, size)
        if estimate.latency_us is None:
            missing = missing or estimate.missing
            continue
        known.append((size, estimate.latency_us))
        errors.append(estimate.error)
        scaled = scaled or estimate.scaled
    if not known:
        return Landscape((), (), (), (), (), (), predictor.tolerance, scaled, missing)
    settled = predictor.settled(dim)
    sure = sum(
        size == dim.most or (size < known[-1][0] and (settled is None or size <= settled))
        for size, _ in known
    )
    judged = judge([t for _, t in known], _errors(errors), predictor.tolerance, sure)
    return _landscape(known, judged, high, predictor.tolerance, scaled, missing)


def _landscape(
    known: list[tuple[int, float]],
    judged: Judged,
    high: int,
    tolerance: float,
    scaled: bool,
    missing: str,
) -> Landscape:
    count = sum(size <= high for size, _ in known)
    return Landscape(
        tuple(size for size, _ in known[:count]),
        tuple(latency for _, latency in known[:count]),
        tuple(judged.penalty[:count].tolist()),
        tuple(judged.low[:count].tolist()),
        tuple(p if isfinite(p) else None for p in judged.high[:count].tolist()),
        judged.verdict[:count],
        tolerance,
        scaled,
        missing,
    )


def _errors(errors: Sequence[float | None]) -> list[float] | None:
    """None where the map gives none at all; infinite for a size that lacks one."""
    if all(error is None for error in errors):
        return None
    return [inf if error is None else error for error in errors]
