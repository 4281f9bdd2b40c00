"""ASVD (arXiv 2312.05821): the SVD of W·S with S diagonal, Sᵢ = (mean |xᵢ|)^α; ranks by each
layer's sensitivity, the perplexity with that layer alone cut to a ratio. All (layer, ratio) are
sorted by it, and as many of the least sensitive as the ratio needs are applied.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from gacprof.core.errors import CompressionError
from gacprof.extras.compress.methods.method import (
    PROJECTIONS,
    FactorNames,
    LowRank,
    RankEvidence,
    TargetLayer,
    uniform_rank,
)

ALPHA = 0.5
"""The publication's exponent of the scaling."""

LEAST_SCALE = 1e-6
"""Added to the scale, so that a feature which is always zero can be divided by."""

RATIOS = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Shares kept at which the sensitivity is searched."""


class ActivationAware(LowRank):
    name = "asvd"
    layout = "asvd"
    reads = "magnitude"
    probed = RATIOS

    def __init__(self, alpha: float = ALPHA) -> None:
        self.alpha = alpha

    def roles(self, tied_head: bool) -> tuple[str, ...]:
        """The head too, unless it is the embedding: factors of its own would only be added."""
        return PROJECTIONS if tied_head else (*PROJECTIONS, "head")

    def names(self, target: TargetLayer) -> FactorNames | None:
        return FactorNames(f"{target.name}.BLinear.weight", (f"{target.name}.ALinear.weight",))

    def scaling(self, seen: Mapping[str, Any]) -> Any:
        return seen["magnitude"] ** self.alpha + LEAST_SCALE

    def ranks(
        self, targets: Sequence[TargetLayer], ratio: float, evidence: RankEvidence
    ) -> dict[str, int | None]:
        kept = least_sensitive(targets, ratio, evidence.losses)
        return {
            target.dims[0]: uniform_rank(target, 1 - kept[target.name])
            if target.name in kept
            else None
            for target in targets
        }

    def rounded(self, rank: int, multiple: int, most: int) -> int:
        """``rank_align`` rounds up; what that adds is not charged to the ratio."""
        return -(-rank // multiple) * multiple

    def config(
        self, config: Mapping[str, Any], ranks: Mapping[str, Sequence[int]]
    ) -> dict[str, Any]:
        """With the ranks by module. ``auto_map`` is left out: it names code that is ASVD's own."""
        return {**config, "truncation_ranks": {name: own[0] for name, own in ranks.items()}}


def least_sensitive(
    targets: Sequence[TargetLayer], ratio: float, losses: Mapping[tuple[str, float], float]
) -> dict[str, float]:
    """The share of its parameters that each target keeps; one that is not named stays dense.

    The (target, share) pairs are sorted by their loss, the worst first. Cutting at an index applies
    all that follow, each target at the least of its shares there; the largest index that removes
    ``ratio`` of all parameters is searched by halving.
    """
    order = sorted(losses, key=lambda pair: (-losses[pair], pair))
    parameters = {target.name: target.parameters for target in targets}
    total = sum(parameters.values())

    def applied(index: int) -> dict[str, float]:
        shares: dict[str, float] = {}
        for name, share in order[index:]:
            shares[name] = min(share, shares.get(name, 1.0))
        return shares

    def left(shares: Mapping[str, float]) -> float:
        return sum(n * shares.get(name, 1.0) for name, n in parameters.items()) / total

    at = bisect_right(range(len(order)), 1 - ratio, key=lambda i: left(applied(i))) - 1
    if at < 0:
        raise CompressionError(
            f"the ratio {ratio:g} cannot be met: ASVD keeps at least {min(RATIOS):g} of each layer"
        )
    return applied(at)
