"""One adjustable dim judged by a map: what it costs as it is, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gacprof.checkpoint.inventory import Dim
from gacprof.diagnosing.companions import beside_aligned
from gacprof.diagnosing.landscape import Landscape, around, landscape
from gacprof.diagnosing.predict import Predictor

WINDOW = 0.25
"""How far around a dim's size better sizes are looked for, as a fraction."""


@dataclass(frozen=True)
class DimFinding:
    """One adjustable dim: what it costs as it is, and the best it could be padded to.

    ``verdict`` is ``safe`` or ``misaligned`` where the penalty's interval lies below or above
    ``tolerance``, ``undecided`` where it holds it (``penalty_high`` is None where nothing larger
    was measured), ``unknown`` where the map has no latency. Latencies are µs over the workload,
    in all GEMMs that the dim feeds; beside aligned others where only those show that it is
    misaligned.
    """

    name: str
    kind: str
    size: int
    layer: int | None
    role: str
    feeds: tuple[str, ...]
    divisible_by_8: bool
    verdict: str
    penalty: float | None
    latency_us: float | None
    best_size: int | None
    best_latency_us: float | None
    tier: str | None
    advice: str
    tolerance: float
    scaled: bool = False
    penalty_low: float | None = None
    penalty_high: float | None = None

    @property
    def lost_us(self) -> float:
        """Time that padding this dim would surely recover: none unless it is misaligned."""
        if self.latency_us is None or self.best_latency_us is None or self.verdict != "misaligned":
            return 0.0
        return max(0.0, self.latency_us - self.best_latency_us)


def judge_dim(predictor: Predictor, dim: Dim, window: float = WINDOW) -> DimFinding:
    """As it is, and where nothing is wrong so, beside aligned others: they may hide what is."""
    found = _judged(predictor, dim, window)
    near = beside_aligned(predictor, [dim], [dim])
    if found.verdict == "misaligned" or near is predictor:
        return found
    beside = _judged(near, dim, window)
    if beside.verdict != "misaligned":
        return found
    when = ", once the dims beside it are aligned" if beside.advice.startswith("pad") else ""
    return replace(beside, advice=beside.advice + when)


def _judged(predictor: Predictor, dim: Dim, window: float) -> DimFinding:
    land = landscape(predictor, dim, *around([dim], window))
    here, best = land.place(dim.size), land.best_padding(dim.size)
    feeds = tuple(f"linear.{feed.axis} of {feed.weight}" for feed in dim.feeds)
    common = (dim.name, dim.kind, dim.size, dim.layer, dim.role, feeds, dim.size % 8 == 0)
    if here is None or best is None or not _comparable(land, here):
        missing = land.missing or "the map holds no larger size to compare it with"
        latency = None if here is None else land.latency_us[here]
        return DimFinding(
            *common, "unknown", None, latency, None, None, None, missing, land.tolerance
        )
    verdict, latency = land.verdict[here], land.latency_us[here]
    best_size, best_latency = (dim.size, latency) if verdict == "safe" else best
    return DimFinding(
        *common,
        verdict,
        land.penalty[here],
        latency,
        best_size,
        best_latency,
        predictor.mechanism(dim),
        _advice(dim, verdict, best_size, land.penalty_high[here]),
        land.tolerance,
        land.scaled,
        land.penalty_low[here],
        land.penalty_high[here],
    )


def _comparable(land: Landscape, here: int) -> bool:
    """Whether anything was measured that the size can be judged against."""
    return land.penalty_high[here] is not None or here + 1 < len(land.sizes)


def _advice(dim: Dim, verdict: str, best_size: int, high: float | None) -> str:
    if verdict == "safe":
        return "keep"
    if verdict == "undecided":
        if high is None:
            return "keep: too little above it was measured to tell"
        return f"keep: it may cost up to {high:.1%}, a quieter or longer sweep would tell"
    if dim.padding == "refused":
        return f"cannot be padded: {dim.why}"
    if best_size == dim.size:
        at_most = "" if dim.most is None else f" (the dense weight's rank is {dim.dense_size})"
        return f"keep: larger sizes are faster, but none within reach{at_most}"
    return f"pad to {best_size}"
