"""PaLU (arXiv 2407.21118): k and v alone, whitened like SVD-LLM's, every group of heads by
itself; ranks in proportion to the groups' Fisher information. Its ratio counts latent entries (what
a cache of keys and values holds), not parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gacprof.checkpoint.inventory import Module
from gacprof.core.errors import CompressionError
from gacprof.extras.compress.methods.method import FactorNames, LowRank, RankEvidence, TargetLayer

GROUP_SIZE = 4
"""Heads in a group, by default."""

MODELS = ("llama", "mistral", "qwen2")
"""Model types for which PaLU has a class of its own."""


class GroupedHeads(LowRank):
    name = "palu"
    layout = "palu"
    reads = "moments"
    scored = "fisher"
    counts = "latents"

    def __init__(self, group_size: int = GROUP_SIZE) -> None:
        self.group_size = group_size

    def roles(self, tied_head: bool) -> tuple[str, ...]:
        return ("k", "v")

    def groups(self, module: Module, heads: int, kv_heads: int) -> int:
        """Of the most heads up to the group size that divide the model's."""
        size = max(n for n in range(1, self.group_size + 1) if kv_heads % n == 0)
        return kv_heads // size

    def names(self, target: TargetLayer) -> FactorNames | None:
        outer = tuple(f"{target.name}.U.{i}.weight" for i in range(target.groups))
        return FactorNames(f"{target.name}.VT.weight", outer)

    def ranks(
        self, targets: Sequence[TargetLayer], ratio: float, evidence: RankEvidence
    ) -> dict[str, int | None]:
        full = {name: target.full for target in targets for name in target.dims}
        shares = in_proportion(evidence.scores, full, (1 - ratio) * sum(full.values()))
        return {name: max(1, int(share)) for name, share in shares.items()}

    def rounded(self, rank: int, multiple: int, most: int) -> int:
        """To the nearest block, one at least; nothing is rebalanced."""
        return min(max(1, round(rank / multiple)) * multiple, most)

    def config(
        self, config: Mapping[str, Any], ranks: Mapping[str, Sequence[int]]
    ) -> dict[str, Any]:
        kind = str(config.get("model_type"))
        own: dict[str, Any] = {"head_wise_ranks": {name: list(r) for name, r in ranks.items()}}
        if kind in MODELS:
            own["model_type"] = f"palu{kind}"
            own["architectures"] = [f"Palu{name}" for name in config.get("architectures") or ()]
        return {**config, **own}


def in_proportion(
    scores: Mapping[str, float], most: Mapping[str, int], total: float
) -> dict[str, float]:
    """``total`` shared out in proportion to the scores, none more than its ``most``: what one
    cannot take is shared among the others. Raises :class:`CompressionError` for scores that say
    nothing."""
    left = {name: float(scores[name]) for name in most}
    if any(not 0 <= score < float("inf") for score in left.values()) or not sum(left.values()):
        raise CompressionError("the scores are not all finite and positive: no ranks follow")
    shares: dict[str, float] = {}
    while left:
        scale = (total - sum(shares.values())) / max(sum(left.values()), 1e-300)
        full = [name for name, score in left.items() if score * scale >= most[name]]
        if not full:
            return shares | {name: score * scale for name, score in left.items()}
        for name in full:
            shares[name] = float(most[name])
            del left[name]
    return shares
