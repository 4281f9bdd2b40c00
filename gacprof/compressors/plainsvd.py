"""Plain SVD: the best factors of each weight by itself, blind to what the layer sees.

The baseline that every published method is measured against. One ratio for all layers; stored with
SVD-LLM's names, whose layout says the same of the tensors.
"""

from __future__ import annotations

from gacprof.compressors.method import FactorNames, LowRank, Target
from gacprof.compressors.svdllm import factor_names


class PlainSvd(LowRank):
    name = "svd"
    layout = "svd-llm"

    def names(self, target: Target) -> FactorNames | None:
        return factor_names(target)
